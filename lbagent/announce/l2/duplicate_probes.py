"""When a leader probes its addresses, because another node may answer for them too. Pure.

Such a node took them over while this one had no connection to the API server (its cable was unplugged, or its agent did not run);
or it was the previous leader, and is back without an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

PROBE_INTERVAL_S = 0.5
PROBE_BATCH = 8  # addresses; the others follow in turn


class DuplicateProbes:
    """Chooses which addresses to probe, and when; `now` is seconds of one steady clock."""

    def __init__(self) -> None:
        self._next_at = float("inf")
        self._turn = 0
        self._probes_all = False
        self._doubts_until = float("-inf")

    def wake_at(self) -> float:
        """Return when `due` must be called although nothing changed."""
        return self._next_at

    def is_due(self, now: float) -> bool:
        """Return whether `due` may return a probe now; it may when a probe is needed for the first time."""
        return self._probes_all or now >= self._next_at or self._next_at == float("inf")

    def probe_all(self) -> None:
        """Probe every address at once: another node answered for one, and may answer for all of them."""
        self._probes_all = True

    def probe_until(self, until: float) -> None:
        """Probe until that time: another node may answer for an address that this one took over."""
        self._doubts_until = max(self._doubts_until, until)

    def take(
        self, now: float, answering: Iterable[bytes], doubts: Callable[[bytes], bool], *, is_blind: bool
    ) -> list[bytes]:
        """Return which of the addresses that this node answers for to probe now: all while it `is_blind`, else the doubtful ones.

        `answering` is read only when a probe may be due.
        """
        if not is_blind and now >= self._doubts_until:
            return self.due(now, [])
        return self.due(now, [each for each in answering if is_blind or doubts(each)]) if self.is_due(now) else []

    def due(self, now: float, leading: Sequence[bytes]) -> list[bytes]:
        """Return what to probe now; `leading` are the addresses that another node may answer for too."""
        if not leading:
            self._next_at, self._probes_all = float("inf"), False
            return []
        if self._probes_all:
            self._next_at, self._probes_all = now + PROBE_INTERVAL_S, False
            return list(leading)
        if self._next_at == float("inf"):
            self._next_at = now
        if now < self._next_at:
            return []
        self._next_at = now + PROBE_INTERVAL_S
        begin, self._turn = self._turn % len(leading), self._turn + PROBE_BATCH
        return [*leading[begin:], *leading[:begin]][:PROBE_BATCH]
