"""Whether a map is nearly full, whether a table turned flows away, and whether the flow tables are swept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName, Severity
from lbagent.bpf.run.sweep import FULL_REASONS
from lbagent.maps.layout import NEXTHOPS, SERVICE_IDS
from lbagent.maps.lbmaps import SIZE_OPTION
from lbagent.maps.reasons import Event, Reason, label

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents

NEARLY_FULL = 0.9  # of a map's entries
_SERVICE_IDS = (
    f"{SERVICE_IDS:,} service ids, fixed: an address with port and protocol takes one; use fewer of them in Services"
)
# What is true of maps that no option sizes.
_FIXED_SIZE = {
    "lb4_reverse_nat": _SERVICE_IDS,
    "lb6_reverse_nat": _SERVICE_IDS,
    "lb4_maglev": _SERVICE_IDS,
    "lb6_maglev": _SERVICE_IDS,
    "lb_nexthop": f"{NEXTHOPS - 1:,} next hops, fixed: packets to further neighbours cost a FIB look-up",
}
# One backend with many flows is short of ports; others are not.
_OF_ONE_BACKEND = {Reason.DROP_SNAT_EXHAUSTED, Event.SNAT_RECLAIMED}


def check_maps(components: AgentComponents) -> Iterator[Condition]:
    """Name each map, flow tables too, that is nearly full."""
    for name, (used, size) in sorted(components.usage().items()):
        if size and used >= NEARLY_FULL * size:
            yield Condition(
                ConditionName.MAP_NEARLY_FULL,
                name,
                f"map {name} is nearly full: {used} of {size} entries ({used / size:.0%})",
                _FIXED_SIZE[name] if name in _FIXED_SIZE else f"raise {SIZE_OPTION[name]}",
            )


def check_tables(components: AgentComponents) -> Iterator[Condition]:
    """Name what turned flows away in the last minute, as the sweeps counted it: the flow table, the SNAT ports."""
    for reason in components.sweeper.full() if components.sweeper else ():
        text, option = FULL_REASONS[reason]
        severity = Severity.DEGRADED if reason in _OF_ONE_BACKEND else None
        yield Condition(ConditionName.TABLE_OVERFLOWS, label(reason), text, f"raise {option}", own_severity=severity)


def check_sweeps(components: AgentComponents) -> Iterator[Condition]:
    """Return why the flow tables are not swept."""
    if components.sweeper and components.sweeper.failure:
        yield Condition(
            ConditionName.SWEEP_FAILED,
            "flow tables",
            f"the flow tables are not swept: {components.sweeper.failure}",
            "expired flows keep their entries until a packet needs one; `lbagent verify` reads the maps; it is tried again",
        )
