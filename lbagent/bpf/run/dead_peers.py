"""Ends connected UDP sockets whose backend is gone: their processes, such as a resolver, get no other sign to connect again.

Socket programs keep the backend of each UDP socket under its cookie (lb{4,6}_sock); TCP detects the end of its backend itself,
and an unconnected socket gets another backend with its next datagram. For a socket, a live backend that has left the socket's
frontend counts as gone: the stored choice of an unconnected socket is then deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from lbagent.errors import LbError
from lbagent.kernel import sock_diag
from lbagent.maps.backend_codec import path_of
from lbagent.maps.layout import PATH, SOCK_KEY, SOCK_REVERSE, SOCK_VALUE
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.family import Family

log = logging.getLogger(__name__)
PAUSE_S = 0.5  # minimum between two scans: changes of Services come in bursts


class DeadPeers:
    """Scans after each change of the maps. `ended` counts the sockets that were ended."""

    def __init__(
        self, maps: LBMaps, is_former: Callable[[L3n4Addr, int], bool] = lambda _frontend, _backend: False
    ) -> None:
        """`is_former` returns whether the backend with this id has left a frontend of UDP. Nothing is read yet."""
        self._maps, self._is_former = maps, is_former
        self._seen: set[tuple[Family, int, int, int]] = set()  # unconnected or closed, according to an earlier scan
        self.ended = 0

    async def run(self, changed_from: Callable[[int], Awaitable[int]]) -> None:
        """Scan without end; `changed_from` returns the generation in the maps as soon as it differs from the given one."""
        generation = -1
        while True:
            generation = await changed_from(generation)
            for _ in range(2):  # a socket may have got its backend at the moment of the change
                try:
                    await asyncio.to_thread(self.scan)
                except (LbError, OSError) as error:
                    log.warning("sockets of backends that are gone were not ended", extra={"error": str(error)})
                await asyncio.sleep(PAUSE_S)

    def scan(self) -> int:
        """End sockets whose backend is gone, in the network namespace of this thread; return how many. Raises OSError."""
        dead = {entry for family in Family for entry in self._dead(family)}
        self._seen &= dead
        fresh = {cookie for _, cookie, _, _ in dead - self._seen}
        self._seen = dead
        if not fresh:
            return 0
        ended = sum(sock_diag.destroy(found) for found in sock_diag.connected_udp_sockets() if found.cookie in fresh)
        if ended:
            self.ended += ended
            log.info("sockets of backends that are gone were ended", extra={"sockets": ended})
        return ended

    def _dead(self, family: Family) -> Iterator[tuple[Family, int, int, int]]:
        """Yield cookie, backend id and generation of the sockets whose backend is gone; delete such choices of unconnected ones."""
        live: dict[tuple[int, int], bool] = {}
        former: dict[tuple[bytes, bytes, int], bool] = {}
        choices = []
        for key, value in self._maps.items(f"lb{family}_sock"):
            cookie, *at, kind, _ = SOCK_KEY[family].unpack(key)
            address, port, generation, _, ident, *_ = SOCK_VALUE[family].unpack(value)
            backend = int(ident), int(generation)
            if kind != SOCK_REVERSE:
                address, port = at
            frontend = bytes(address), bytes(port), backend[0]
            if backend not in live:
                live[backend] = self._is_live(family, *backend)
            if frontend not in former:
                former[frontend] = self._is_former(
                    L3n4Addr(frontend[0], int.from_bytes(frontend[1], "big"), L4Type.UDP), backend[0]
                )
            if kind != SOCK_REVERSE:
                if live[backend] and former[frontend]:
                    choices.append(key)
            elif not live[backend] or former[frontend]:
                yield family, int(cookie), *backend
        if choices:
            self._maps.delete_many(f"lb{family}_sock", choices)

    def _is_live(self, family: Family, ident: int, generation: int) -> bool:
        size = PATH[family].size
        with self._maps.window(f"lb{family}_path", ident * size, size) as view:
            record = path_of(bytes(view))
        return record.live and record.gen == generation
