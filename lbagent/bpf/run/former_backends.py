"""Handles backends that left a frontend while others keep them: UDP flows through that frontend select again.

A backend without any frontend loses its flows by its path record. One that still has a frontend is alive, and the fast path does
not check whether it is that of the flow. So the sweeper removes it from the flows of the frontends that it has left: for one
sweep, lb_former_backend has their pairs of service id and backend id. TCP connections stay: they end with their backend. Where no
Service has it in its slices any more, and some keep it for their own flows (targets/bpf/stale_backends.py), they end, too.

None of this state has to survive the agent: after a start, and whenever it is unknown which backends left, the agent reads the
pairs of the flows and compares them with the State (`unknown`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable

from lbagent.maps import backend_codec
from lbagent.maps.flow_layout import BACKEND_GENERATION_TURNED, SPILL_VALUE
from lbagent.maps.flow_reader import Pair, spilled_rows
from lbagent.maps.layout import (
    FORMER_BACKEND_OF_ALL,
    FORMER_BACKEND_SHIFT,
    FORMER_BACKENDS,
    HOST_ORDER,
    PATH,
    U32,
    PathL4,
)
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family

MAP = "lb_former_backend"
_GENERATION_TURNED = BACKEND_GENERATION_TURNED << SPILL_VALUE.fields["backend_generation"].shift


async def _nothing() -> None:
    """The value of `resolve_unknown` until there is one."""


class FormerBackends:
    """Owner of lb_former_backend. Use it inside the event loop."""

    def __init__(self, maps: LBMaps) -> None:
        """Begin with unknown pairs: flows may exist already."""
        self.waiting: set[Pair] = set()  # for a sweep
        self.of_all: set[Pair] = set()  # those of them whose connections end, too
        self.unknown = True  # flows may have backends that left without a record of it
        self.arrived = asyncio.Event()  # a sweep has work to do
        self.resolve_unknown: Callable[[], Awaitable[None]] = _nothing  # reads the flows, once the State is complete
        self._maps = maps
        self._swept: tuple[Pair, ...] = ()  # the pairs of the running sweep

    def add(self, pairs: Iterable[Pair], *, of_all: bool = False) -> None:
        """Record backends that left a frontend, after the change of the maps. `of_all`: connections end, too."""
        found = set(pairs)
        self.waiting |= found
        if of_all:
            self.of_all |= found
        if self.waiting:
            self.arrived.set()

    def forget_what_left(self) -> None:
        """Record that the maps changed in an unknown way: the next sweep reads the flows."""
        self.unknown = True
        self.arrived.set()

    def remove(self, pairs: Collection[Pair]) -> None:
        """Record backends that a frontend gets, before it has them. Raises KernelError."""
        self.waiting.difference_update(pairs)
        self.of_all.difference_update(pairs)
        back = [pair for pair in self._swept if pair in pairs]
        if back:
            self._maps.delete_many(MAP, [_key(pair) for pair in back])

    def begin_sweep(self) -> bool:
        """Write the pairs for the sweeper; return whether there are any. Raises KernelError.

        Pairs that exceed the map wait for the next sweep.
        """
        self.arrived.clear()
        self._clear()
        self._swept = tuple(sorted(self.waiting))[:FORMER_BACKENDS]
        rows = [(_key(pair), U32.pack(FORMER_BACKEND_OF_ALL if pair in self.of_all else 0)) for pair in self._swept]
        self._maps.put_many(MAP, rows)
        return bool(self._swept)

    def end_sweep(self) -> None:
        """Remove the backends from flows of the spill map, too, and record the pairs as done. Raises KernelError.

        A flow may have changed at the same moment, so pairs that were found are searched once more.
        """
        if not self._swept:
            return
        found = {key for key, value in self._maps.items(MAP) if U32.unpack(value)[0] & ~FORMER_BACKEND_OF_ALL}
        again = {pair for pair in self._swept if _key(pair) in found}
        pairs = self.waiting.intersection(self._swept)
        for family in Family:
            again |= self._take_from_spilled(family, pairs)
        self.waiting.difference_update(pairs - again)
        self.of_all &= self.waiting
        self._clear()
        if self.waiting:
            self.arrived.set()

    def _clear(self) -> None:
        """Empty the map: an agent may have died in the middle of a sweep."""
        self._maps.delete_many(MAP, [key for key, _ in self._maps.items(MAP)])
        self._swept = ()

    def _take_from_spilled(self, family: Family, pairs: Collection[Pair]) -> set[Pair]:
        """Remove the backend from flows of the spill map; return the pairs."""
        rows, found = [], set()
        for flow, key, value in spilled_rows(self._maps, family):
            pair = flow.service, flow.backend
            if (
                pair in pairs
                and (flow.l4 is PathL4.UDP or pair in self.of_all)
                and self._is_served(family, flow.backend, flow.backend_generation)
            ):
                word = int.from_bytes(value[:8], HOST_ORDER) ^ _GENERATION_TURNED
                rows.append((key, word.to_bytes(8, HOST_ORDER) + value[8:]))
                found.add(pair)
        if rows:
            self._maps.put_many(family_map(family, "spill"), rows)
        return found

    def _is_served(self, family: Family, ident: int, generation: int) -> bool:
        """Return whether a flow still has its backend."""
        size = PATH[family].size
        with self._maps.window(family_map(family, "path"), ident * size, size) as view:
            record = backend_codec.path_of(bytes(view))
        return record.live and record.gen == generation


def _key(pair: Pair) -> bytes:
    service, backend = pair
    return (service << FORMER_BACKEND_SHIFT | backend).to_bytes(8, HOST_ORDER)
