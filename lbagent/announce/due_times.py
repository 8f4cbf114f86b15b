"""When each address has to be looked at although nothing changed: the next ones are found without a look at all of them. Pure."""

from __future__ import annotations

import heapq


class DueTimes:
    """A time for each address, as far as it has one; seconds of one steady clock."""

    def __init__(self) -> None:
        self._at: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []  # entries that `_at` does not confirm are left overs

    def set(self, address: bytes, at: float) -> None:
        """Let an address be due at a time; inf: at none."""
        if at == float("inf"):
            self._at.pop(address, None)
        elif self._at.get(address) != at:
            self._at[address] = at
            heapq.heappush(self._heap, (at, address))

    def next_at(self) -> float:
        """Return when the next address is due; inf: none is."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else float("inf")

    def take(self, now: float) -> list[bytes]:
        """Return the addresses that are due by now, and have them due no more."""
        found = []
        while self.next_at() <= now:
            _, address = heapq.heappop(self._heap)
            del self._at[address]
            found.append(address)
        return found
