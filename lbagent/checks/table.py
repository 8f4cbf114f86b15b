"""The table of checks: rows of the data planes, then those that hold for every data plane.

A new check is a row of the `CHECKS` of its subject: here where it holds for every data plane, else in the data plane's folder
(targets/bpf/checks/). `lbagent doctor` and the agent show findings in this order, and the agent runs checks in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lbagent.checks import agent_checks, announce_checks, backend_health_checks, node_checks, source_checks
from lbagent.model.check import Check, CheckGroup, Finding, Result

if TYPE_CHECKING:
    from lbagent.checks.offline_node import OfflineNode
    from lbagent.checks.running_agent import RunningAgent
    from lbagent.config import Config
    from lbagent.targets.data_plane import DataPlane


def _nothing(_context: object) -> Iterable[Result]:
    return ()


CHECK_FAILED: Check[Any] = Check(
    "check-failed",
    "whether each of these checks could be made",
    _nothing,  # the agent reports a check that raises
    "the check {check} could not be made: {error}",
)
_OF_AGENT: tuple[Check[RunningAgent], ...] = (
    *announce_checks.CONFLICT_CHECKS,
    *agent_checks.PORT_CHECKS,
    *announce_checks.ANNOUNCE_CHECKS,
    *node_checks.CHECKS,
    *agent_checks.AGENT_CHECKS,
    *source_checks.CHECKS,
    *backend_health_checks.CHECKS,
)


def every_check() -> tuple[Check[Any], ...]:
    """Return the whole table, each name once. Each call returns its own: a check may store state."""
    from lbagent.targets.offline_planes import checks_of_data_planes

    rows: dict[str, Check[Any]] = {}
    for check in (*checks_of_data_planes(), *_OF_AGENT, *_of_node(), CHECK_FAILED):
        rows.setdefault(check.name, check)
    return tuple(rows.values())


def _of_node() -> tuple[Check[OfflineNode], ...]:
    from lbagent.checks import balancer_checks, renderer_checks  # for doctor alone

    return (*renderer_checks.CHECKS, *balancer_checks.CHECKS)


def running_checks(agent: RunningAgent, planes: Iterable[DataPlane]) -> list[CheckGroup[Any]]:
    """Return the checks of a running agent: each of them is a condition."""
    groups = [*(plane.checks() for plane in planes), CheckGroup((*_OF_AGENT, CHECK_FAILED), agent)]
    return [CheckGroup([check for check in rows if check.when.running], context) for rows, context in groups]


def offline_findings(config: Config, *, kubernetes: bool = False) -> list[Finding]:
    """Run the checks of doctor for the data planes of --renderer, and return their findings, each once, also good ones.

    `kubernetes`: look for leftovers of kube-proxy, too. Raises ConfigError where --renderer names no data plane.
    """
    from lbagent.checks.offline_node import OfflineNode
    from lbagent.targets.offline_planes import offline_data_planes

    planes = offline_data_planes(config)
    node = OfflineNode(
        renderers=[(plane.name, plane.unavailable) for plane in planes if plane.checks is None],
        balances=any(plane.balances for plane in planes),
        kubernetes=kubernetes,
    )
    groups: list[CheckGroup[Any]] = [plane.checks for plane in planes if plane.checks is not None]
    found = []
    for rows, context in [*groups, CheckGroup(_of_node(), node)]:
        found += [each for check in rows if check.when.offline for each in check.findings(context)]
    return list(dict.fromkeys(found))


def finding_row(found: Finding) -> dict[str, str]:
    """Return a finding as `lbagent doctor -o json` has it."""
    return {"level": str(found.level), "what": found.text, "advice": found.remedy}


def current_texts(agent: RunningAgent, *names: str) -> list[str]:
    """Return the current findings of some checks of the agent, one sentence each, in the order of these names."""
    table = {check.name: check for check in _OF_AGENT}
    return [each.text for name in names for each in table[name].findings(agent)]
