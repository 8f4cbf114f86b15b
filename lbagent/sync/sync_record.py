"""When changes were queued and when they were in force, as kube-proxy measures it: counts, pauses, and the latency of its SLI.

The latency of an EndpointSlice is the time from its annotation (endpoints.kubernetes.io/last-change-trigger-time) until the maps
have it. Source: kube-proxy's endpointslice change tracker, network_programming_latency.md (behaviour).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from lbagent.model.histogram import Histogram
from lbagent.objects.records import ObjectChange

LATENCY_BOUNDS_S = (0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
MAX_WAITING = 1000  # States
MAX_TIMES = 10_000  # changes that were merged, of which each is measured
DURATION_BOUNDS_S = tuple(0.001 * 2**power for power in range(15))


class SyncRecord:
    """Queued and applied changes. `changes` and `pending` count by kind of object; times are seconds since the epoch."""

    def __init__(self) -> None:
        self.programming = Histogram(LATENCY_BOUNDS_S)
        self.durations = Histogram(DURATION_BOUNDS_S)
        self.changes: Counter[str] = Counter()
        self.pending: Counter[str] = Counter()
        self.queued_at = 0.0
        self.synced_at = 0.0
        self._started_at = time.time()
        self._waiting: list[tuple[int, Counter[str], list[float]]] = []  # generation, changes by kind, trigger times

    def queued(self, changes: Sequence[ObjectChange], generation: int | None) -> None:
        """Record the changes that a pass took: those of a new State with this generation; None: they changed no State."""
        if not changes:
            return
        kinds = Counter(change.kind for change in changes)
        self.changes += kinds
        self.queued_at = time.time()
        if generation is not None:
            self.pending += kinds
            times = [change.triggered_at for change in changes if change.triggered_at > self._started_at]
            if len(self._waiting) >= MAX_WAITING:  # no State was applied for long: the last ones count as one
                _, before, earlier = self._waiting.pop()
                kinds, times = kinds + before, (earlier + times)[:MAX_TIMES]
            self._waiting.append((generation, kinds, times))

    def in_force(self, generation: int, duration_s: float) -> None:
        """Record that a State, and all before it, are in force, after a pass of `duration_s`."""
        self.synced_at = now = time.time()
        self.durations.observe(duration_s)
        left = []
        for entry in self._waiting:
            number, kinds, times = entry
            if number > generation:
                left.append(entry)
                continue
            self.pending -= kinds
            for triggered_at in times:
                self.programming.observe(max(0.0, now - triggered_at))
        self._waiting = left
