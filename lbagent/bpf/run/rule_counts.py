"""Keeps the counts of live flows of Services with rules right: what the programs count is compared with each sweep.

The programs count flows as they open and end; `base` is what the agent adds. While a sweep walks over the table flows open and end,
so a count is wrong only if it is outside of what those explain. Counts of backends have no such bounds: two sweeps must agree. The
first sweep of a Service may count flows twice that open meanwhile: a second one follows at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from lbagent.bpf.load.program_settings import tick_shift
from lbagent.kernel.jiffies import hz, jiffies
from lbagent.maps.layout import HOST_ORDER, LB_BACKEND_FLOWS, LB_RULES, RULES
from lbagent.maps.lbmaps import LBMaps

_AT = LB_RULES.offsets()
_WORD = 8
_SINCE_KEPT_S = 2 * 3600  # twice the longest slow start: then the start of a backend is removed


class SweptRules:
    """What is done around a sweep for the rules of Services about new flows; this one has none.

    `wants_sweep`: another sweep is due at once.
    """

    wants_sweep = False

    def begin_sweep(self) -> bool:
        """Return whether flows of Services with rules are counted."""
        return False

    def end_sweep(self) -> None:
        """Use the counts."""


class TickOf(Protocol):
    """The programs' clock."""

    def __call__(self) -> int:
        """Return the low 16 bits of the current tick."""


def tick_now() -> int:
    """Return the low 16 bits of the tick that programs read now: some second each. Raises KernelError."""
    return jiffies() >> tick_shift(hz()) & 0xFFFF


class _Counts(Struct):
    """The counts of a Service when a sweep began."""

    opened: int
    closed: int


class RuleCounts(SweptRules, ABC):
    """Corrects the counts of the Services and backends that `numbers` and `backends` name."""

    def __init__(self, maps: LBMaps, tick: TickOf) -> None:
        self._maps, self._tick = maps, tick
        self.fresh: set[int] = set()  # records whose flows were never counted: a sweep is due
        self._begun: dict[int, _Counts] = {}
        self._live: dict[int, int] = {}  # of backends, when a sweep began
        self._off: dict[int, int] = {}  # by backend: by how much the last sweep found its count too high

    @abstractmethod
    def numbers(self) -> Collection[int]:
        """Return the numbers of the records in use."""

    @abstractmethod
    def backends(self) -> Collection[int]:
        """Return the ids of their backends."""

    # --- around a sweep ---

    def begin_sweep(self) -> bool:
        """Return whether the sweep must count flows of Services with rules. Raises KernelError."""
        if not self.numbers():
            return False
        size = self._maps.specs["lb_swept"].value_size
        with self._maps.window("lb_swept", 0, size) as view:
            view[:] = bytes(size)
        self._begun = {number: self._counts(number) for number in self.numbers()}
        self._live = {ident: self._live_of(ident) for ident in self.backends()} if self.fresh else {}
        return True

    def end_sweep(self) -> None:
        """Correct the counts by what the sweep found. Raises KernelError."""
        begun, self._begun = self._begun, {}
        if not begun:
            return
        with self._maps.window("lb_swept", 0, self._maps.specs["lb_swept"].value_size) as view:
            swept = memoryview(bytes(view)).cast("I")
        is_fresh = bool(self.fresh)
        for number, before in begun.items():
            if number in self.numbers():
                self._correct(number, before, swept[number])
        self._correct_backends(self.backends(), swept[RULES:], exact=is_fresh)
        self.wants_sweep = is_fresh and bool(self._off)

    def _correct(self, number: int, before: _Counts, found: int) -> None:
        counts = self._counts(number)
        live = self._read(number, "base") + counts.opened - counts.closed
        lowest, highest = found - (counts.closed - before.closed), found + (counts.opened - before.opened)
        right = highest if number in self.fresh else min(max(live, lowest), highest)
        self.fresh.discard(number)
        if right != live:
            self._store(number, "base", right - counts.opened + counts.closed)

    def _correct_backends(self, ids: Iterable[int], found: Sequence[int], *, exact: bool) -> None:
        off: dict[int, int] = {}
        words = []
        now = -1
        for ident in ids:
            at = ident * LB_BACKEND_FLOWS.size
            with self._maps.window("lb_backend_flows", at, LB_BACKEND_FLOWS.size) as view:
                record = bytes(view)
            live, base, weight, since = (int(part) for part in LB_BACKEND_FLOWS.unpack(record))
            too_many = _signed(live + _signed(base, 32), 64) - found[ident]
            last, less = self._off.get(ident, 0), 0
            if exact:
                less = too_many - _signed(live - self._live.get(ident, live), 64)  # what opened since it began is right
            elif too_many * last > 0:
                less = min(too_many, last, key=abs)
            off[ident] = too_many - less
            if since:
                now = self._tick() if now < 0 else now
                since = since if now - since & 0xFFFF < _SINCE_KEPT_S else 0
            word = LB_BACKEND_FLOWS.pack(live, base - less & 0xFFFFFFFF, weight, since)[_WORD:]
            if word != record[_WORD:]:
                words.append((at + _WORD, word))
        self._off = {ident: count for ident, count in off.items() if count}
        self._maps.store("lb_backend_flows", words)

    # --- words ---

    def _live_of(self, ident: int) -> int:
        with self._maps.window("lb_backend_flows", ident * LB_BACKEND_FLOWS.size, _WORD) as view:
            return int.from_bytes(view, HOST_ORDER)

    def _counts(self, number: int) -> _Counts:
        return _Counts(self._read(number, "opened"), self._read(number, "closed"))

    def _read(self, number: int, field: str) -> int:
        at = number * LB_RULES.size + _AT[field]
        with self._maps.window("lb_rules", at, _WORD) as view:
            return _signed(int.from_bytes(view, HOST_ORDER), 64)

    def _store(self, number: int, field: str, value: int) -> None:
        word = (value & (1 << 64) - 1).to_bytes(8, HOST_ORDER)
        self._maps.store("lb_rules", [(number * LB_RULES.size + _AT[field], word)])

    def _backend_word(self, ident: int) -> bytes:
        with self._maps.window("lb_backend_flows", ident * LB_BACKEND_FLOWS.size + _WORD, _WORD) as view:
            return bytes(view)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
