"""Whether a map is nearly full, and whether a table turned flows away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents

NEARLY_FULL = 0.9  # of a map's entries
# What makes each map larger; of the next hops nothing does.
_SETTINGS = {
    "service": "--max-service-slots",
    "backend": "--max-backends",
    "reverse_nat": "--max-service-slots",
    "source_range": "--max-source-ranges",
    "affinity_match": "--max-service-slots",
    "maglev": "--max-service-slots",
    "flow": "--flow-table-size, --flow6-table-size",
}


def check_maps(components: AgentComponents) -> Iterator[Condition]:
    """Name each map, flow tables too, that is nearly full."""
    for name, (used, size) in sorted(components.usage().items()):
        if size and used >= NEARLY_FULL * size:
            setting = _SETTINGS.get(name.partition("_")[2], "")
            yield Condition(
                ConditionName.MAP_NEARLY_FULL,
                name,
                f"map {name} is nearly full: {used} of {size} entries ({used / size:.0%})",
                f"raise {setting}" if setting else "",
            )


def check_tables(components: AgentComponents) -> Iterator[Condition]:
    """Name what turned flows away in the last minute, as the sweeps saw it: the flow table, the SNAT ports."""
    if components.sweeper:
        for text in components.sweeper.problems():
            what, _, remedy = text.partition(": raise ")
            yield Condition(ConditionName.TABLE_OVERFLOWS, what, what, f"raise {remedy}" if remedy else "")
