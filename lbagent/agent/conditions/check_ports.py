"""Whether the ports that balancers and kubelets ask are open: /healthz, the metrics, health check node ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName, Severity

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_ports(components: AgentComponents) -> Iterator[Condition]:
    """Name each port that could not be opened; it is tried again every few seconds."""
    for what, why, of_service in components.node_servers.problems() if components.node_servers else ():
        remedy = "end what listens there (kube-proxy has the same ports), or choose another address; it is tried again"
        severity = Severity.DEGRADED if of_service else None
        text = f"{what} cannot be opened: {why}"
        yield Condition(ConditionName.PORT_NOT_OPEN, what, text, remedy, own_severity=severity)
