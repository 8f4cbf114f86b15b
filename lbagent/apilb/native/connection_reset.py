"""Ends connections of this host to a server that is down, so that their processes reconnect: onMarkedDown: reset.

It ends only connections by the pool's bind, only while another server of the pool accepts connections, and over 1.5 seconds, so
that the other servers do not get all connections at once. If no server was left, connections end when another one has been up for
some seconds and theirs is still down.
Source: the kernel's tcp_abort by sock_diag (behaviour); HAProxy's `on-marked-down shutdown-sessions` (behaviour).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from lbagent.apilb.instance import OnMarkedDown
from lbagent.apilb.native.pool_objects import NAMESPACE, ServedInstance
from lbagent.errors import LbError
from lbagent.kernel import sock_diag
from lbagent.kernel.sock_diag import ConnectedSocket
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.targets.data_plane import FrontendOf, SocketFrontend

log = logging.getLogger(__name__)
SPREAD_S = 1.5  # the period in which many connections end
EACH_S = 0.03  # between two ends of few connections
TICK_S = 0.05
STEADY_S, STEADY_POLL_INTERVAL_S = 5.0, 0.5
RECHECK_DELAY_S = 1.0  # until the next check: a socket may have got the server during the change
MAX_CHECKS = 10  # the other servers may go down in the meantime, and recover
REMEMBER_S = 10.0  # between two reads of the sockets: the data plane drops old entries


class ConnectionReset:
    """Ends connections to servers that are down. `ended` counts the connections that were ended."""

    def __init__(
        self,
        frontends_of_sockets: Callable[[Family], FrontendOf],
        pools: Callable[[], Sequence[tuple[ServedInstance, Iterable[L3n4Addr]]]],
        state: Callable[[], State],
    ) -> None:
        """`frontends_of_sockets` is that of the data plane, `state` returns its State.

        `pools` returns the pools with the addresses of their servers.
        """
        self.ended = 0
        self._frontends, self._pools, self._state = frontends_of_sockets, pools, state
        self._queue: asyncio.Queue[tuple[ServedInstance, L3n4Addr]] = asyncio.Queue()
        self._in_hand: set[tuple[str, L3n4Addr]] = set()  # pools' keys and servers
        self._known: dict[int, SocketFrontend] = {}  # by cookie of the socket

    def server_down(self, pool: ServedInstance, server: L3n4Addr) -> None:
        """Record a server that is down."""
        if pool.instance.on_marked_down is OnMarkedDown.RESET and (pool.key, server) not in self._in_hand:
            self._in_hand.add((pool.key, server))
            self._queue.put_nowait((pool, server))

    async def run(self, settled: Callable[[], Awaitable[None]]) -> None:
        """End connections until cancelled; `settled` returns when the maps contain all earlier changes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._remember())
            while True:
                pool, server = await self._queue.get()
                group.create_task(self._reset(pool, server, settled))

    async def _reset(self, pool: ServedInstance, server: L3n4Addr, settled: Callable[[], Awaitable[None]]) -> None:
        try:
            await settled()  # new connections avoid it now
            ended = await self._end_all(pool, server)
        except (LbError, OSError) as error:
            log.warning("connections to a server that is down were not ended", extra={"error": str(error)})
            return
        finally:
            self._in_hand.discard((pool.key, server))
        self.ended += ended
        if ended:
            fields = {"service": pool.key, "server": str(server), "connections": ended}
            log.info("connections to a server that is down were ended", extra=fields)

    async def _end_all(self, pool: ServedInstance, server: L3n4Addr) -> int:
        """End connections until none is left, or they may stay; return the number of ended ones."""
        ended = 0
        for check in range(MAX_CHECKS):
            found = await asyncio.to_thread(self._find, pool, server)
            if check and not found:
                break
            if not self.may_reset(pool, server) and not await self._others_are_back(pool, server):
                break
            ended += await self._end(pool, found, server)
            await asyncio.sleep(RECHECK_DELAY_S)
        return ended

    async def _others_are_back(self, pool: ServedInstance, server: L3n4Addr) -> bool:
        """Wait until another server has been up for some seconds: a flapping one should not get all connections.

        Return False when this one is up again, or no longer in the pool.
        """
        steady_s = 0.0
        while steady_s < STEADY_S:
            await asyncio.sleep(STEADY_POLL_INTERVAL_S)
            groups = [svc for svc in self._rows(pool, server) if server in {each.address for each in svc.backends}]
            if not groups or any(each.address == server for svc in groups for each in svc.selectable):
                return False
            steady_s = steady_s + STEADY_POLL_INTERVAL_S if self.may_reset(pool, server) else 0.0
        return True

    async def _end(self, pool: ServedInstance, found: list[ConnectedSocket], server: L3n4Addr) -> int:
        random.shuffle(found)
        ticks = max(1, round(min(SPREAD_S, EACH_S * len(found)) / TICK_S))
        ended = 0
        for tick in range(ticks):
            part = found[tick::ticks]
            if not part or not self.may_reset(pool, server):
                break
            ended += await asyncio.to_thread(_destroy, part)
            await asyncio.sleep(TICK_S)
        return ended

    def may_reset(self, pool: ServedInstance, server: L3n4Addr) -> bool:
        """Return whether new connections go to other servers of the pool, and there is one."""
        groups = [svc.selectable for svc in self._rows(pool, server)]
        return any(groups) and all(each.address != server for group in groups for each in group)

    def _rows(self, pool: ServedInstance, server: L3n4Addr) -> list[SVC]:
        rows = self._state().by_name.get(ServiceName(NAMESPACE, pool.instance.name), ())
        return [svc for svc in rows if svc.frontend.family is server.family]

    # --- which sockets ---

    def _find(self, pool: ServedInstance, server: L3n4Addr) -> list[ConnectedSocket]:
        """Return the sockets that are connected to a server through the pool's bind. Raises OSError, KernelError."""
        found = [each for each in sock_diag.tcp_connections_to(server.port) if each.peer[0] == server.address]
        return self._of_bind(pool, server, found, self._frontends(server.family)) if found else []

    def _of_bind(
        self, pool: ServedInstance, server: L3n4Addr, found: Iterable[ConnectedSocket], frontend_of: FrontendOf
    ) -> list[ConnectedSocket]:
        return [
            each
            for each in found
            if (frontend := self._frontend(each, server, frontend_of)) and pool.bind.holds(*frontend)
        ]

    def count(self) -> Counter[tuple[str, L3n4Addr]]:
        """Return the number of connections of this host by key of the pool and server. Blocks."""
        counts: Counter[tuple[str, L3n4Addr]] = Counter()
        with contextlib.suppress(LbError, OSError):
            pools = [(pool, tuple(addresses)) for pool, addresses in self._pools()]
            servers = {each for _, addresses in pools for each in addresses}
            to: dict[SocketFrontend, list[ConnectedSocket]] = defaultdict(list)
            for port in {each.port for each in servers}:  # the kernel walks all sockets each time
                for found in sock_diag.tcp_connections_to(port):
                    to[found.peer].append(found)
            looked_up = {family: self._frontends(family) for family in {each.family for each in servers}} if to else {}
            for pool, addresses in pools:
                for server in addresses:
                    if sockets := to.get((server.address, server.port)):
                        counts[pool.key, server] = len(self._of_bind(pool, server, sockets, looked_up[server.family]))
        return counts

    def _frontend(self, found: ConnectedSocket, server: L3n4Addr, frontend_of: FrontendOf) -> SocketFrontend | None:
        """Return the frontend that a socket connected to when it got this server."""
        return frontend_of(found.cookie, server) or self._known.get(found.cookie)

    async def _remember(self) -> None:
        while True:
            try:
                self._known = await asyncio.to_thread(self._look)
            except (LbError, OSError) as error:
                log.debug("connections to servers were not read", extra={"error": str(error)})
            await asyncio.sleep(REMEMBER_S)

    def _look(self) -> dict[int, SocketFrontend]:
        """Return the frontends of the sockets that are connected to a server now."""
        servers = {(each.address, each.port): each for _, addresses in self._pools() for each in addresses}
        looked_up = {family: self._frontends(family) for family in {each.family for each in servers.values()}}
        known = {}
        for port in {port for _, port in servers}:
            for found in sock_diag.tcp_connections_to(port):
                server = servers.get(found.peer)
                if server and (frontend := self._frontend(found, server, looked_up[server.family])):
                    known[found.cookie] = frontend
        return known


def _destroy(found: Iterable[ConnectedSocket]) -> int:
    """End these sockets; return how many still existed."""
    return sum(map(sock_diag.destroy, found))
