"""Joins the kernel's network to the paths of backends: watcher, next-hop table, neighbours to keep, path finder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from lbagent.errors import LbError
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.backend import Backend
from lbagent.model.cooperative import run_in_background
from lbagent.model.path_info import PathInfo
from lbagent.net.near_clients import NearClients
from lbagent.net.neighbours import MAX_MANAGED, NeighbourKeeper
from lbagent.net.netlink import NetworkWatcher
from lbagent.net.paths import Hop, PathFinder, PathSettings, gateways
from lbagent.net.snapshot import NodeNetwork
from lbagent.targets.bpf.neighbour_map import NeighbourMap
from lbagent.targets.bpf.nexthop import CAPACITY, NextHopTable, outdated_hops
from lbagent.targets.bpf.send_watch import SendWatch
from lbagent.targets.bpf.xdp_output import refusing_devices

log = logging.getLogger(__name__)
ANSWER_S = 0.3  # a neighbour that lives has answered by then, over any network a load balancer should be on
NETWORK_RETRY_DELAY_S = 1.0  # after the kernel could not be asked at all
RECOUNT_PAUSE_S = 1.0  # at least, between two recounts of what the backends need
RECOUNT_SHARE = (
    4  # the pause after a recount, in times of its duration: with the pauses within it, it takes 4 % of the time
)


class NetworkFollower:
    """Keeps `finder` and the next hops in the maps current.

    `on_paths` is called when answers may differ, `on_network` after every change.
    """

    def __init__(self, maps: LBMaps, settings: PathSettings, reuse_after_s: float) -> None:
        self.watcher = NetworkWatcher()
        self.table = NextHopTable(maps, reuse_after_s)
        self.keeper = NeighbourKeeper(NeighbourMap(maps))
        self.settings = settings
        self.finder = PathFinder(self.watcher.network, settings, self.table.index_of)
        self.on_paths: Callable[[], None] = lambda: None
        self.on_network: Callable[[NodeNetwork], None] = lambda _network: None
        # the backends that the maps hold; None while that is not sure, or nothing is to be released
        self.backends_in_use: Callable[[], Iterable[Backend] | None] = lambda: None
        self._known = self.watcher.network
        self._planned: frozenset[Hop] = frozenset()  # next hops of backends, as of the last plan
        self._asked: frozenset[Hop] = frozenset()
        self._native: frozenset[int] | None = None  # not known yet; then the next hops of an earlier agent decide
        self.send_watch = SendWatch(lambda: self._changed(self._known))
        self.refusing: dict[int, str] = {}  # devices that take no frames from XDP, and why
        self._clients = NearClients()
        self._client_devices: frozenset[int] = frozenset()  # programs sit on them, and no pods are behind them
        self._gateways: list[Hop] = []
        self._gateways_of: tuple[object, ...] = ()
        self._xdp_in_use = asyncio.Event()
        self._hops_wanted = asyncio.Event()
        self._plan_written = asyncio.Event()
        self._has_planned = False
        self.watcher.on_forgotten = self._hops_wanted.set
        self._network_changed = asyncio.Event()

    @property
    def network(self) -> NodeNetwork:
        """The latest snapshot."""
        return self.watcher.network

    def path(self, backend: Backend) -> PathInfo:
        """Return the path to a backend."""
        return self.finder(backend)

    def snat_addresses(self) -> tuple[bytes, ...]:
        """Return the addresses this node translates to: whatever a path may choose."""
        own = [item.address for item in self._known.addresses if item.source or item.deprecated]
        chosen = [
            route.prefsrc
            for table in (self._known.routes4, self._known.routes6)
            for route in table.routes
            if route.prefsrc
        ]
        return tuple(dict.fromkeys([*own, *chosen, *self.settings.node_ips, *self.settings.extra_snat.addresses()]))

    async def start(self) -> None:
        """Read the network and the pinned next hops. Raises KernelError."""
        self.table.restore(time.monotonic())
        network = await self.watcher.start()
        self._known = network
        self.table.update(network, (), (), time.monotonic())
        self._renew()

    async def run(self) -> None:
        """Follow the kernel until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watcher.run(self._changed))
            group.create_task(self._keep_neighbours())
            group.create_task(self._recount_needs())
            await self._xdp_in_use.wait()  # tc finds out by itself
            group.create_task(self.send_watch.run())

    def close(self) -> None:
        """Close the netlink socket."""
        self.watcher.close()

    def reconfigure(self, settings: PathSettings) -> None:
        """Take over new settings."""
        if settings != self.settings:
            self.settings = settings
            self._renew()
            self.on_paths()

    async def resolve_neighbours(self) -> bool:
        """Wait until the neighbours that were just asked about for the first time have answered, or will not.

        A flow may take a new backend as soon as the plan is written, and XDP has to drop what it has no neighbour for.
        Returns whether the paths may have changed.
        """
        self._planned |= self.finder.hops
        unknown = {hop for hop in self.finder.hops - self._asked if hop not in self._known.neighbours}
        if not unknown:
            return False
        self._hops_wanted.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while not unknown <= self._known.neighbours.keys():
                    self._network_changed.clear()
                    await self._network_changed.wait()
        return True

    def use_devices(self, devices: frozenset[int], native: frozenset[int]) -> None:
        """Take note of the `devices` by which clients come, and of those whose drivers run the XDP program (`native`).

        By which next hops it can send depends on them.
        """
        if (devices, native) != (self._client_devices, self._native):
            self._client_devices, self._native = devices, native
            self._changed(self._known)
        if native:
            self._xdp_in_use.set()

    def refusing_of(self, network: NodeNetwork, native: frozenset[int]) -> dict[int, str]:
        """Return the devices that take no frames from XDP programs on `native`: by their own word, or as was seen."""
        return refusing_devices(network, native) | (self.send_watch.refusing if native else {})

    def paths_planned(self) -> None:
        """Take note that a plan is written: the neighbours to keep resolved, and the backends in use, may have changed."""
        if self.finder.settle() or self._has_planned:  # the very first plan needs nothing that is gone
            self._plan_written.set()
        self._has_planned = True
        self._use_hops()

    def _use_hops(self) -> None:
        self._planned = frozenset(self.finder.hops)
        if self._planned != self._asked:
            self._hops_wanted.set()

    def _changed(self, network: NodeNetwork) -> None:
        """Take a new snapshot: next hops at once, paths only where an answer may differ."""
        old, self._known = self._known, network
        self._clients.follow(network, self._client_devices, time.monotonic())
        self._network_changed.set()
        if self._native is not None:
            self.send_watch.follow(
                {index: (network.features.get(index), link) for index, link in network.links.items()}
            )
            self.refusing = self.refusing_of(network, self._native)
            self.table.no_xdp = self.refusing.keys()
        outdated = outdated_hops(old, network, self.settings.pod_devices)
        wanted = self._planned
        before = {hop: self.table.index_of(hop) for hop in wanted}
        try:
            self.table.update(network, wanted, outdated, time.monotonic())
        except LbError as error:
            log.error("next hops could not be written", extra={"error": str(error)})
        if self.table.full:
            log.warning(
                "the next-hop table is full: packets to further neighbours cost a FIB look-up",
                extra={"limit": CAPACITY},
            )
        if _same_paths(old, network) and all(self.table.index_of(hop) == index for hop, index in before.items()):
            self.finder.network = network
        else:
            self._renew()
            self.on_paths()
        self.on_network(network)

    def _renew(self) -> None:
        self.finder = PathFinder(self._known, self.settings, self.table.index_of)
        of = (self._known.routes4, self._known.routes6, self._known.links)
        if of != self._gateways_of:
            self._gateways, self._gateways_of = gateways(self._known), of
        self._hops_wanted.set()

    def send_errors(self) -> dict[str, int]:
        """Return the frames that XDP sent and a device did not take, by device."""
        links, errors = self._known.links, self.send_watch.errors
        return {links[index].name: found.frames for index, found in errors.items() if index in links}

    def frames_not_taken(self, now: float) -> dict[str, str]:
        """Return a sentence for each device that did not take frames of XDP a moment ago, by its name."""
        return self.send_watch.problems(self._known.links, now)

    async def _recount_needs(self) -> None:
        """After each plan, forget what only removed backends needed."""
        while True:
            await self._plan_written.wait()
            self._plan_written.clear()
            began, finder, backends = time.monotonic(), self.finder, self.backends_in_use()
            if backends is None:
                continue  # the next plan is another occasion
            await run_in_background(finder.recounting(backends), time.monotonic, asyncio.sleep)
            if finder is self.finder:  # else the paths are planned again
                self._use_hops()
            await asyncio.sleep(max(RECOUNT_PAUSE_S, RECOUNT_SHARE * (time.monotonic() - began)))

    async def _keep_neighbours(self) -> None:
        """Ask for what is wanted: after every change, and again after the keeper's pauses."""
        pause_s: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hops_wanted.wait()
            self._hops_wanted.clear()
            self._asked = self._planned
            try:
                now = time.monotonic()
                wanted = [*sorted(self._asked), *self._gateways]
                room = max(0, MAX_MANAGED - len(wanted))
                wanted += self._clients.hops(self._known, now)[:room]
                pauses = (
                    await self.keeper.keep(wanted, self.watcher.neighbours(), now),
                    self._clients.next_look_s(self._known),
                )
                pause_s = min((pause for pause in pauses if pause is not None), default=None)
            except (OSError, LbError) as error:
                log.warning("the kernel could not be asked to resolve neighbours", extra={"error": str(error)})
                pause_s = NETWORK_RETRY_DELAY_S


def _same_paths(old: NodeNetwork, new: NodeNetwork) -> bool:
    """Say whether everything but the neighbours is as it was."""
    return (
        old.links == new.links
        and old.addresses == new.addresses
        and old.routes4 is new.routes4
        and old.routes6 is new.routes6
        and old.own4 is new.own4
        and old.own6 is new.own6
        and (old.policy4, old.policy6) == (new.policy4, new.policy6)
    )
