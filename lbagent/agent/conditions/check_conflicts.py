"""Whether another host has, or claims, an address that this node is to announce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.model.address import format_ip

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_conflicts(components: AgentComponents) -> Iterator[Condition]:
    """Name each such address and the MAC address of the host; it ends a minute after the host was last heard."""
    for conflict in components.announcer.conflicts() if components.announcer else ():
        remedy = "find the host by its MAC address (the switch has its port) and take the address off it"
        yield Condition(ConditionName.ADDRESS_CONFLICT, format_ip(conflict.address), conflict.text(), remedy)
