"""The kernel's network as a snapshot that follows it: one dump, then events. The XDP features of the drivers are read, too.

Links, addresses and neighbours follow their events. Routes and rules are dumped again after any event that may concern them,
because the kernel removes routes with a device or an address without an event. A lost event (ENOBUFS) causes a new dump.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from lbagent.errors import KernelError
from lbagent.iproute import AsyncIPRoute, NetlinkError
from lbagent.kernel import features
from lbagent.kernel.features import XdpFeature
from lbagent.model.family import Family
from lbagent.net import netlink_messages
from lbagent.net.neighbours import KernelNeighbours
from lbagent.net.netlink_messages import SOCKET_FAMILY, TABLE_LOCAL, TABLE_MAIN
from lbagent.net.routes import Route, RouteTable
from lbagent.net.snapshot import Link, NodeAddress, NodeNetwork

# link, neighbour, IPv4 address, route, rule, IPv6 address, route, rule (RTMGRP_*)
GROUPS = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x40000
SETTLE_S = 0.02  # events come in bursts: one snapshot for a burst
ROUTE_SHARE = 10  # dumping routes may take at most a tenth of the time
NETLINK_RETRY_DELAY_S = 1.0
NEIGHBOUR_EVENTS = ("RTM_NEWNEIGH", "RTM_DELNEIGH")
LINK_EVENTS = ("RTM_NEWLINK", "RTM_DELLINK")
ADDRESS_EVENTS = ("RTM_NEWADDR", "RTM_DELADDR")

OnChange = Callable[[NodeNetwork], None]


class NetworkWatcher:
    """Keeps `network` current; `run` calls back after each change."""

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self._addresses: dict[tuple[int, bytes, int], NodeAddress] = {}
        self._neighbours: dict[tuple[int, bytes], bytes] = {}
        self.permanent: set[tuple[int, bytes]] = set()  # configured by hand: neighbours.py leaves them alone
        self.managed: set[tuple[int, bytes]] = set()  # the kernel keeps them resolved
        self.carriers: set[int] = set()  # devices by which frames can leave
        self.features: dict[int, XdpFeature] = {}  # by device; empty where the kernel does not report them
        self.on_forgotten: Callable[[], None] = lambda: None  # a neighbour is no longer kept, or a carrier came back
        self._forgotten = False
        self._tables: tuple[RouteTable, RouteTable, RouteTable, RouteTable] = (RouteTable(()),) * 4
        self._policy = (False, False)
        self._events: AsyncIPRoute | None = None
        self._routes_due = 0.0
        self._dirty = self._routes_dirty = self._features_dirty = False
        self.network = self._snapshot()

    async def start(self) -> NodeNetwork:
        """Subscribe, then dump everything: nothing that happens in between is lost."""
        try:
            self._events = AsyncIPRoute()
            await self._events.bind(groups=GROUPS)
            await self._dump()
            await self._read_features()
            self.network = self._snapshot()
        except (OSError, NetlinkError) as error:
            raise KernelError("reading the network", getattr(error, "errno", None) or errno.EIO, "rtnetlink") from error
        return self.network

    async def run(self, on_change: OnChange) -> None:
        """Follow the kernel without end."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        with self._following_features(queue):
            while True:
                reader = asyncio.create_task(self._read_into(queue))
                try:
                    await self._follow(queue, reader, on_change)
                except (OSError, NetlinkError):
                    await asyncio.sleep(NETLINK_RETRY_DELAY_S)
                finally:
                    reader.cancel()
                    await asyncio.gather(reader, return_exceptions=True)
                while not queue.empty():
                    queue.get_nowait()
                await self._restart(on_change)

    def neighbours(self) -> KernelNeighbours:
        """Return the kernel's neighbours and carriers: live sets, to be read before the next wait."""
        return KernelNeighbours(self._neighbours, self.managed, self.permanent, self.carriers)

    def close(self) -> None:
        """Close the event socket."""
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._events.close()
            self._events = None

    @contextlib.contextmanager
    def _following_features(self, queue: asyncio.Queue[Any]) -> Iterator[None]:
        """Put None into the queue at each change of a driver's features."""
        events, loop = features.feature_events(), asyncio.get_running_loop()

        def read() -> None:
            assert events is not None
            features.drain(events)
            queue.put_nowait(None)

        if events is None:
            yield
            return
        loop.add_reader(events, read)
        try:
            yield
        finally:
            loop.remove_reader(events)
            events.close()

    async def _read_features(self) -> None:
        """Read all drivers' features (in a thread: the kernel may be holding its device lock)."""
        self._features_dirty = False
        new = await asyncio.to_thread(features.xdp_features)
        self._dirty |= new != self.features
        self.features = new

    async def _restart(self, on_change: OnChange) -> None:
        self.close()
        with contextlib.suppress(KernelError):
            on_change(await self.start())
            self.on_forgotten()

    async def _read_into(self, queue: asyncio.Queue[Any]) -> None:
        while self._events is not None:
            async for message in self._events.get():
                queue.put_nowait(message)

    async def _follow(self, queue: asyncio.Queue[Any], reader: asyncio.Task[None], on_change: OnChange) -> None:
        """Take events until the reader fails."""
        while not reader.done():
            timeout = max(0.0, self._routes_due - time.monotonic()) if self._routes_dirty else None
            get = asyncio.create_task(queue.get())
            try:
                done, _ = await asyncio.wait({get, reader}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                get.cancel()  # of a task that is done: without effect
            if get in done:
                self._apply(get.result())
                await asyncio.sleep(SETTLE_S)
                while not queue.empty():
                    self._apply(queue.get_nowait())
            if self._routes_dirty and time.monotonic() >= self._routes_due:
                await self._dump_routes()
            if self._features_dirty:
                await self._read_features()
            if self._dirty:
                self.network = self._snapshot()
                on_change(self.network)
            if self._forgotten:
                self._forgotten = False
                self.on_forgotten()
        await reader

    def _apply(self, message: Any) -> None:
        if message is None:
            self._features_dirty = True
            return
        event = message["event"]
        if event in NEIGHBOUR_EVENTS:
            self._apply_neighbour(message)
        elif event in LINK_EVENTS:
            self._apply_link(message)
        elif event in ADDRESS_EVENTS:
            self._apply_address(message)
        else:
            self._routes_dirty = True

    def _apply_link(self, message: Any) -> None:
        new = netlink_messages.link(message)
        if message["event"] == "RTM_DELLINK":
            if message["family"] == 0:  # a port that leaves a bridge is no removed device
                self._dirty |= self._links.pop(new.index, None) is not None
                self.carriers.discard(new.index)
                self.features.pop(new.index, None)
        elif message["family"] == 0:
            self._apply_carrier(new.index, carrier=netlink_messages.has_carrier(message))
            self._features_dirty |= new.index not in self._links
            self._dirty |= self._links.get(new.index) != new
            self._links[new.index] = new
        self._routes_dirty |= self._dirty

    def _apply_carrier(self, index: int, *, carrier: bool) -> None:
        """A carrier that returns is a change by itself: the kernel has dropped the neighbours of its device."""
        if carrier and index not in self.carriers:
            self._forgotten = True
        (self.carriers.add if carrier else self.carriers.discard)(index)

    def _apply_address(self, message: Any) -> None:
        new = netlink_messages.address(message)
        if new is None:
            return
        key = (new.ifindex, new.address, new.bits)
        if message["event"] == "RTM_DELADDR":
            changed = self._addresses.pop(key, None) is not None
        else:
            changed = self._addresses.get(key) != new
            self._addresses[key] = new
        self._dirty |= changed
        self._routes_dirty |= changed

    def _apply_neighbour(self, message: Any) -> None:
        read = netlink_messages.neighbour(message)
        if read is None:
            return
        key, mac = read.hop, read.mac
        self._forgotten |= (key in self.managed and not read.managed) or (key in self._neighbours and not mac)
        (self.permanent.add if read.permanent and mac else self.permanent.discard)(key)
        (self.managed.add if read.managed else self.managed.discard)(key)
        if self._neighbours.get(key, b"") != mac:
            self._dirty = True
            if mac:
                self._neighbours[key] = mac
            else:
                del self._neighbours[key]

    async def _dump(self) -> None:
        async with AsyncIPRoute() as ipr:
            self._links.clear()
            self._addresses.clear()
            self._neighbours.clear()
            self.permanent.clear()
            self.managed.clear()
            self.carriers.clear()
            async for message in _each(ipr.get_links):
                self._apply_link(message)
            async for message in _each(ipr.get_addr):
                self._apply_address(message)
            for number in SOCKET_FAMILY.values():
                async for message in _each(ipr.get_neighbours, family=number):
                    self._apply_neighbour(message)
        await self._dump_routes()

    async def _dump_routes(self) -> None:
        began = time.monotonic()
        self._routes_dirty = False
        found: dict[tuple[int, Family], list[Route]] = {}
        policy = dict.fromkeys(Family, False)
        async with AsyncIPRoute() as ipr:
            for family, number in SOCKET_FAMILY.items():
                async for message in _each(ipr.get_routes, family=number):
                    read = netlink_messages.route(message)
                    if read is not None:
                        found.setdefault((read[0], family), []).append(read[1])
                async for message in _each(ipr.get_rules, family=number):
                    policy[family] |= not netlink_messages.usual_rule(message)
        old = self._tables
        keys = [(table, family) for table in (TABLE_MAIN, TABLE_LOCAL) for family in Family]  # as NodeNetwork has them
        main4, main6, local4, local6 = (
            _unless_same(before, found.get(key, ())) for before, key in zip(old, keys, strict=True)
        )
        new_tables, new_policy = (main4, main6, local4, local6), (policy[Family.IPV4], policy[Family.IPV6])
        self._dirty |= new_tables != old or new_policy != self._policy
        self._tables, self._policy = new_tables, new_policy
        self._routes_due = time.monotonic() + ROUTE_SHARE * (time.monotonic() - began)

    def _snapshot(self) -> NodeNetwork:
        self._dirty = False
        addresses = tuple(sorted(self._addresses.values(), key=lambda a: (a.ifindex, len(a.address))))
        return NodeNetwork(
            dict(self._links), addresses, *self._tables, dict(self._neighbours), *self._policy, dict(self.features)
        )


def _unless_same(before: RouteTable, routes: Iterable[Route]) -> RouteTable:
    """Return a table of these routes: the previous one if they are equal, so that a change is seen by identity."""
    new = RouteTable(routes)
    is_same = set(new.routes) == set(before.routes) and new.default_devices == before.default_devices
    return before if is_same else new


async def _each(dump: Callable[..., Any], **arguments: Any) -> AsyncIterator[Any]:
    async for message in await dump(**arguments):
        yield message
