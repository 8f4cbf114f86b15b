"""How many flows each backend of a port should have, and which of them are too many. Pure.

The fair shares are fixed at the start, and so are the flows that may be reset: those that were there then, which are the long-lived
ones (the flow table has no time of their beginning). A client that has connected again is not reset once more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

FlowKey = TypeVar("FlowKey", bound=Hashable)
Backend = TypeVar("Backend", bound=Hashable)


class FlowBalance(Generic[Backend, FlowKey]):
    """The flows of one port of a Service, by backend."""

    def __init__(
        self,
        weights: Mapping[Backend, int],
        flows: Iterable[tuple[FlowKey, Backend]],
        within: float,
        choose: Callable[[Sequence[FlowKey], int], Sequence[FlowKey]],
    ) -> None:
        """`weights` of the backends that take new flows; `within`: how much more than its share a backend may have, 0.1 = 10 %."""
        self._choose = choose
        self._first: dict[FlowKey, Backend] = {key: backend for key, backend in flows if backend in weights}
        total, whole = len(self._first), sum(weights.values()) or 1
        self.shares: dict[Backend, float] = {each: total * weight / whole for each, weight in weights.items()}
        self.limits: dict[Backend, int] = {
            each: max(math.ceil(share), math.floor(share * (1 + within))) for each, share in self.shares.items()
        }
        self.counts: Counter[Backend] = Counter(self._first.values())
        self._tried: set[FlowKey] = set()

    def excess(self) -> dict[Backend, int]:
        """Return by how many flows backends are over their limits."""
        return {each: over for each, limit in self.limits.items() if (over := self.counts[each] - limit) > 0}

    def follow(self, flows: Iterable[tuple[FlowKey, Backend]]) -> None:
        """Take the flows that there are now."""
        now = {key: backend for key, backend in flows if backend in self.limits}
        self.counts = Counter(now.values())
        self._first = {key: each for key, each in self._first.items() if now.get(key) == each}

    def next_flows(self, most: int) -> list[FlowKey]:
        """Return flows to reset, at most so many, of the backends that are over their limits; [] when none is left to choose."""
        out: list[FlowKey] = []
        excess = self.excess()
        of_backend: dict[Backend, list[FlowKey]] = {each: [] for each in excess}
        for key, each in self._first.items():
            if each in of_backend and key not in self._tried:
                of_backend[each].append(key)
        for each, over in sorted(excess.items(), key=lambda item: -item[1]):
            many = of_backend[each]
            out += self._choose(many, min(over, len(many), most - len(out)))
        return out

    def backend_of(self, key: FlowKey) -> Backend:
        """Return the backend of a flow that `next_flows` returned."""
        return self._first[key]

    def were_reset(self, keys: Collection[FlowKey]) -> None:
        """Note that these flows were chosen: none is chosen twice."""
        self._tried.update(keys)
        for key in keys:
            if (backend := self._first.pop(key, None)) is not None:
                self.counts[backend] -= 1
