"""The table of checks. A new check is a row of the `CHECKS` of its subject.

`lbagent doctor` and the agent show findings in this order, and the agent runs checks in it: repairs first, because other findings
may follow from them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lbagent.checks import (
    agent_checks,
    announce_checks,
    balancer_checks,
    capacity_checks,
    device_checks,
    drop_checks,
    kernel_checks,
    path_checks,
    pin_checks,
    snat_checks,
    socket_checks,
    source_checks,
    xdp_checks,
)
from lbagent.checks.offline_context import OfflineContext
from lbagent.checks.running_context import RunningAgent, RunningContext
from lbagent.model.check import Check, Finding, Result

if TYPE_CHECKING:  # mypy compares both with the inputs of doctor's and the agent's checks
    from lbagent.checks.node_context import NodeContext

    _BOTH: tuple[type[NodeContext], ...] = (OfflineContext, RunningContext)


def _nothing(_context: object) -> Iterable[Result]:
    return ()


CHECK_FAILED: Check[Any] = Check(
    "check-failed",
    "whether each of these checks could be made",
    _nothing,  # the agent reports a check that raises
    "the check {check} could not be made: {error}",
)


def every_check() -> tuple[Check[Any], ...]:
    """Return the table. Each call returns its own: a check may store state."""
    return (
        *kernel_checks.CHECKS,
        *pin_checks.CHECKS,
        *xdp_checks.CHECKS,
        *device_checks.DEVICE_CHECKS,
        *device_checks.FORWARDING_CHECKS,
        *socket_checks.CHECKS,
        *path_checks.CHECKS,
        *capacity_checks.CHECKS,
        *snat_checks.CHECKS,
        *drop_checks.checks(),
        *_of_any_data_plane(),
        *balancer_checks.CHECKS,
        CHECK_FAILED,
    )


def _of_any_data_plane() -> tuple[Check[Any], ...]:
    """Return the checks that read no part of the BPF data plane."""
    return (
        *announce_checks.CONFLICT_CHECKS,
        *agent_checks.PORT_CHECKS,
        *announce_checks.ANNOUNCE_CHECKS,
        *agent_checks.AGENT_CHECKS,
        *source_checks.CHECKS,
    )


def running_checks(*, has_bpf: bool = True) -> tuple[Check[Any], ...]:
    """Return the checks of a running agent: each of them is a condition. `has_bpf`: BPF is its data plane."""
    return tuple(check for check in (every_check() if has_bpf else _of_any_data_plane()) if check.when.running)


def offline_findings(context: OfflineContext) -> list[Finding]:
    """Run the checks of doctor, and return their findings, also good ones."""
    checks = (check for check in every_check() if check.when.offline)
    return [check.finding(result) for check in checks for result in check.run(context)]  # type: ignore[union-attr]


def current_texts(agent: RunningAgent, *names: str) -> list[str]:
    """Return the current findings of some checks, one sentence each, in the order of these names."""
    table = {check.name: check for check in every_check()}
    context = RunningContext(agent)
    out = []
    for check in map(table.__getitem__, names):
        found = check.run(context)
        assert not inspect.isawaitable(found)
        out += [check.finding(result).text for result in found]
    return out
