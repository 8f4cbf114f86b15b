"""The table of the checks of the BPF data plane, in the order in which they run and findings are shown.

Repairs come first, because other findings may follow from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lbagent.model.check import Check
from lbagent.targets.bpf.checks import (
    capacity_checks,
    device_checks,
    drop_checks,
    firewall_checks,
    handshake_checks,
    kernel_checks,
    path_checks,
    pin_checks,
    self_test_checks,
    snat_checks,
    socket_checks,
    xdp_checks,
)
from lbagent.targets.bpf.checks.offline_context import OfflineContext
from lbagent.targets.bpf.checks.running_context import RunningContext

if TYPE_CHECKING:  # mypy compares both with the inputs of doctor's and the agent's checks
    from lbagent.targets.bpf.checks.node_context import NodeContext

    _BOTH: tuple[type[NodeContext], ...] = (OfflineContext, RunningContext)


def bpf_checks() -> tuple[Check[Any], ...]:
    """Return the table. Each call returns its own: a check may store state."""
    return (
        *kernel_checks.CHECKS,
        *pin_checks.CHECKS,
        *self_test_checks.CHECKS,
        *xdp_checks.CHECKS,
        *device_checks.CHECKS,
        *socket_checks.CHECKS,
        *path_checks.CHECKS,
        *capacity_checks.CHECKS,
        *handshake_checks.CHECKS,
        *snat_checks.CHECKS,
        *drop_checks.checks(),
        *firewall_checks.CHECKS,
    )
