"""Counts TCP handshakes that got no answer, and keeps which backends refuse or do not answer: every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from lbagent.errors import LbError
from lbagent.maps import backend_tcp
from lbagent.probes.passive_checks import WaitingHandshake

if TYPE_CHECKING:
    from lbagent.maps.lbmaps import LBMaps
    from lbagent.model.address import L3n4Addr
    from lbagent.model.backend import Backend
    from lbagent.model.handshakes import Handshakes
    from lbagent.probes.backend_check import CheckedService
    from lbagent.targets.bpf.bpf_target import BpfTarget

log = logging.getLogger(__name__)
EVERY_S = 1.0
RARE = 4  # every so many looks all backends are read: milliseconds, where the table of handshakes takes a tenth of one
REPORTED_S = 600.0  # a backend to which no client connects any more is reported for so long after its last failure


class _Failing(Struct):
    count: int
    at: float  # monotonic seconds of the last failure


class HandshakeWatch:
    """Looks at lb_handshake and lb_tcp."""

    def __init__(self, maps: LBMaps, target: BpfTarget) -> None:
        self._maps, self._target = maps, target
        self._failing: dict[int, _Failing] = {}  # by id in lb_tcp
        self._failure = ""
        self._looks = 0

    async def run(self) -> None:
        """Look without end."""
        while True:
            try:
                self.look(time.monotonic_ns())
                self._failure = ""
            except LbError as error:
                if str(error) != self._failure:
                    log.error("handshakes could not be read", extra={"error": str(error)})
                self._failure = str(error)
            await asyncio.sleep(EVERY_S)

    def look(self, now_ns: int) -> None:
        """Look once. Raises KernelError."""
        backend_tcp.count_lost(self._maps, now_ns)
        self._looks += 1
        if self._looks % RARE:
            return
        now = now_ns / 1e9
        found: dict[int, _Failing] = {}
        for ident, count in backend_tcp.failing(self._maps).items():
            known = self._failing.get(ident)
            found[ident] = known if known and known.count == count else _Failing(count, now)
        self._failing = {ident: each for ident, each in found.items() if now - each.at < REPORTED_S}

    def waiting(self, services: Mapping[str, CheckedService]) -> list[WaitingHandshake]:
        """Return the flows to these Services that wait since their SYN was repeated. Raises KernelError."""
        found = backend_tcp.repeated(self._maps) if services else []
        if not found:
            return []
        backends = {ident: address for address, idents in self._ids(services).items() for ident in idents}
        names = {svc.id: str(svc.name) for svc in self._target.state.services if str(svc.name) in services}
        return [
            WaitingHandshake(each.number, each.began_ns / 1e9, names[each.service], backends[each.backend], each.client)
            for each in found
            if each.service in names and each.backend in backends
        ]

    def answered(self, services: Mapping[str, CheckedService]) -> dict[L3n4Addr, int]:
        """Return how many timed handshakes the backends of these Services have answered, by SYN-ACK or RST. Raises KernelError."""
        return {
            address: sum(each.done + each.refused for each in backend_tcp.read_handshakes(self._maps, idents))
            for address, idents in self._ids(services).items()
        }

    def _ids(self, services: Mapping[str, CheckedService]) -> dict[L3n4Addr, list[int]]:
        """Return the ids in lb_tcp of the backends of Services."""
        known = self._target.state.backends
        addresses = {address for each in services.values() for address, _ in each.backends if address in known}
        return {address: self._target.counter_ids(known[address].id) for address in addresses}

    def failing(self) -> Iterator[tuple[Backend, int, Handshakes]]:
        """Yield the backends of the State whose last handshakes failed, how many in a row, and all of them. Raises KernelError."""
        if not self._failing:
            return
        for backend in self._target.state.backends.values():
            ids = [ident for ident in self._target.counter_ids(backend.id) if ident in self._failing]
            if ids:
                (first, *others) = backend_tcp.read_handshakes(self._maps, self._target.counter_ids(backend.id))
                for each in others:
                    first = first.plus(each)
                yield backend, max(self._failing[ident].count for ident in ids), first
