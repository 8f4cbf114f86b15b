"""Which addresses a leader asks the wire about while another node may answer too. Pure.

That node took them over unheard while this one did not know the Leases, as its cable was out or its agent did not run; or it had
them before, and is back without an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

PROBE_INTERVAL_S = 0.5
PROBE_BATCH = 8  # addresses; the others follow in turn


class WireQuestions:
    """When to ask about which address; `now` is seconds of one steady clock."""

    def __init__(self) -> None:
        self._next_at = float("inf")
        self._turn = 0
        self._asks_all = False
        self._doubts_until = float("-inf")

    def wake_at(self) -> float:
        """Return when `due` must be called although nothing changed."""
        return self._next_at

    def is_due(self, now: float) -> bool:
        """Return whether `due` has anything to find out now; it does when something has to be asked about for the first time."""
        return self._asks_all or now >= self._next_at or self._next_at == float("inf")

    def suspect(self) -> None:
        """Take that another node was heard with an address: it may have all of them."""
        self._asks_all = True

    def doubt(self, until: float) -> None:
        """Take that until then an address that was taken over may be another node's too."""
        self._doubts_until = max(self._doubts_until, until)

    def take(
        self, now: float, answering: Iterable[bytes], doubts: Callable[[bytes], bool], *, is_blind: bool
    ) -> list[bytes]:
        """Return what to ask about now of the addresses that this node answers for: all while it `is_blind`, else those it doubts.

        They are looked at only when something may be asked.
        """
        if not is_blind and now >= self._doubts_until:
            return self.due(now, [])
        return self.due(now, [each for each in answering if is_blind or doubts(each)]) if self.is_due(now) else []

    def due(self, now: float, leading: Sequence[bytes]) -> list[bytes]:
        """Return what to ask about now; `leading` are the addresses that another node may answer for too."""
        if not leading:
            self._next_at, self._asks_all = float("inf"), False
            return []
        if self._asks_all:
            self._next_at, self._asks_all = now + PROBE_INTERVAL_S, False
            return list(leading)
        if self._next_at == float("inf"):
            self._next_at = now
        if now < self._next_at:
            return []
        self._next_at = now + PROBE_INTERVAL_S
        begin, self._turn = self._turn % len(leading), self._turn + PROBE_BATCH
        return [*leading[begin:], *leading[:begin]][:PROBE_BATCH]
