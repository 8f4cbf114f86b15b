"""Whether packets are dropped that no service, policy or limit asks to drop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName, Severity
from lbagent.maps.reasons import INTENDED_DROPS, Reason, label

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents

WINDOW_S = 30.0  # a drop counts as growing for so long
_UNWANTED = [reason for reason in Reason if reason.name.startswith("DROP_") and reason not in INTENDED_DROPS]
# A few of these happen on any busy node: a race of two CPUs, a fragment that overtook the first one.
_TOLERATED = {Reason.DROP_RACE: 10, Reason.DROP_FRAGMENT: 10}
_ADVICE = {
    Reason.DROP_SNAT_EXHAUSTED: "raise --snat-ports or --snat-table-size",
    Reason.DROP_NO_NEIGHBOR: "is a next hop down? see `ip neigh` and the routes to backends and clients",
    Reason.DROP_REPLY_CLASH: "a process of this node asked a VIP for a backend of this node: use --socket-lb, or ask the"
    " backend itself",
    Reason.DROP_FOREIGN_SOURCE: "do replies come back by another way than the routes say? then --strict-source must be off",
    Reason.DROP_FRAGMENT: "raise --max-fragments, or find out why first fragments do not come this way",
}
# What one Service's endpoints cause; the rest of the traffic is served.
_OF_OBJECTS = {Reason.DROP_NO_NEIGHBOR, Reason.DROP_SNAT_EXHAUSTED, Reason.DROP_REPLY_CLASH}
_REPORT = "this must not happen: `lbagent verify` looks at the maps; please report it with its output"


class DropsCheck:
    """Compares the counters with those of half a minute ago."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, list[int]]] = deque()

    def __call__(self, components: AgentComponents) -> Iterator[Condition]:
        """Name each kind of unwanted drop that grew."""
        counts, now = [packets for packets, _ in components.maps.counters(_UNWANTED)], time.monotonic()
        self._seen.append((now, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        for reason, count, was in zip(_UNWANTED, counts, before, strict=True):
            if count - was > _TOLERATED.get(reason, 0):
                text = f"{count - was} packets were dropped in the last {max(1.0, now - began):.0f} s: {label(reason)}"
                severity = Severity.DEGRADED if reason in _OF_OBJECTS else None
                remedy = _ADVICE.get(reason, _REPORT)
                yield Condition(ConditionName.DROPS_GROW, label(reason), text, remedy, own_severity=severity)
