"""Whether packets are dropped other than by a service, policy or limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from lbagent.maps.reasons import INTENDED_DROPS, Reason, label
from lbagent.model.check import Check, Result, Severity
from lbagent.targets.bpf.checks.running_context import RunningContext

WINDOW_S = 30.0  # a drop counts as growing for this time
_UNWANTED = [reason for reason in Reason if reason.name.startswith("DROP_") and reason not in INTENDED_DROPS]
# A few of these happen on any busy node: a race of two CPUs, a fragment that overtook the first one.
_TOLERATED = {Reason.DROP_RACE: 10, Reason.DROP_FRAGMENT: 10}
_ADVICE = {
    Reason.DROP_SNAT_EXHAUSTED: "raise --snat-ports or --snat-table-size",
    Reason.DROP_NO_NEIGHBOR: "is a next hop down? see `ip neigh` and the routes to backends and clients",
    Reason.DROP_REPLY_CLASH: "a process of this node used a VIP with a backend on this node: use --socket-lb, or the"
    " backend's own address",
    Reason.DROP_FOREIGN_SOURCE: "if replies return by another path than the routes, --strict-source must be off",
    Reason.DROP_FRAGMENT: "raise --max-fragments, or find out why first fragments take another path",
}
# Caused by one Service's endpoints; other traffic is served.
_OF_OBJECTS = {Reason.DROP_NO_NEIGHBOR, Reason.DROP_SNAT_EXHAUSTED, Reason.DROP_REPLY_CLASH}


class DropsGrow:
    """Compares the counters with those of half a minute ago."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, list[int]]] = deque()

    def __call__(self, context: RunningContext) -> Iterator[Result]:
        """Report each kind of unwanted drop that grew."""
        counts, now = [packets for packets, _ in context.plane.maps.counters(_UNWANTED)], time.monotonic()
        self._seen.append((now, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()
        began, before = self._seen[0]
        for reason, count, was in zip(_UNWANTED, counts, before, strict=True):
            if count - was > _TOLERATED.get(reason, 0):
                values = {"packets": count - was, "seconds": max(1.0, now - began), "reason": label(reason)}
                severity = Severity.DEGRADED if reason in _OF_OBJECTS else None
                yield Result(label(reason), values, remedy=_ADVICE.get(reason), severity=severity)


def checks() -> tuple[Check[RunningContext], ...]:
    """Return the checks: each agent has its own, which store counters."""
    return (
        Check(
            "drops-grow",
            "the counters of drops other than by a service, policy or limit",
            DropsGrow(),
            "{packets} packets were dropped in the last {seconds:.0f} s: {reason}",
            "this is a bug; run `lbagent verify` and report its output",
        ),
    )
