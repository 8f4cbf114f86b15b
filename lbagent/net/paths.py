"""The path of packets from this node to a backend: local or not, source address, next hop and packet size. Pure.

Source of the local rule: docs/datapath.md (a backend is local when its endpoint's nodeName is this node; without a nodeName,
when its address is one of this node's own or its route leaves through a --pod-device).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase

import msgspec

from lbagent.model.backend import Backend
from lbagent.model.cooperative import Cooperative
from lbagent.model.extra_snat_sources import ExtraSnatAddress, ExtraSnatSources
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.net.routes import Route, contains
from lbagent.net.snapshot import Link, NodeAddress, NodeNetwork

MAX_MTU = 0xFFFF  # the path record's field
ETHERNET_ADDRESS = 6  # bytes
UNKNOWN_HOP = 0  # the program looks up the kernel's FIB
NO_OUTPUT = 0  # no index of a device: packets stay on this node
ANY_DEVICE = -1  # no index of a device
RECENT = 1024  # cached answers: the ports of an address are requested soon after each other
BETWEEN_YIELDS = 64  # backends
LOOPBACK = 1  # the index of `lo` in every network namespace

Hop = tuple[int, bytes]  # (ifindex, neighbour address)


class PathSettings(msgspec.Struct, frozen=True):
    """The configured part."""

    node_name: str
    node_ips: tuple[bytes, ...] = ()
    pod_devices: tuple[str, ...] = ()
    extra_snat: ExtraSnatSources = ExtraSnatSources()
    masquerade_all: bool = False

    @property
    def keeps_pods(self) -> bool:
        """Whether pods (behind a --pod-device) keep their address towards backends on other nodes."""
        return bool(self.pod_devices) and not self.masquerade_all


class PathNeeds(msgspec.Struct):
    """The needs of the paths to a set of backends, and the backends without a usable path."""

    hops: set[Hop] = msgspec.field(default_factory=set)  # neighbours
    unusable: dict[bytes, str] = msgspec.field(default_factory=dict)  # addresses that cannot be reached, and why
    forwards: set[Family] = msgspec.field(default_factory=set)  # families of backends beyond this node's own sockets
    outputs: set[int] = msgspec.field(default_factory=set)  # devices by which remote backends are reached

    def update(self, other: PathNeeds) -> None:
        """Add the needs of another set of backends."""
        self.hops |= other.hops
        self.unusable |= other.unusable
        self.forwards |= other.forwards
        self.outputs |= other.outputs


class PathFinder:
    """Answer `finder(backend)` for one snapshot of the network.

    `needs` collects what the answers need, so that exactly those neighbours are kept resolved. `recounting` removes
    the needs of removed backends. Equal answers are one object: 100,000 backends behind a few gateways cost a few records.
    """

    def __init__(self, network: NodeNetwork, settings: PathSettings, index_of: Callable[[Hop], int]) -> None:
        """`index_of` gives the next-hop index of a neighbour (0 = unknown)."""
        self.network = network
        self.settings = settings
        self.needs = PathNeeds()
        self._pending = PathNeeds()  # of the answers since `settle`
        self._settled = False  # a plan with these answers is written
        self._recount: PathNeeds | None = None  # while backends are recounted
        self._noted: set[Family] = set()  # families that `_noting` has
        self._noting: tuple[PathNeeds, ...] = (self.needs, self._pending)  # target for the needs of an answer
        self._index_of = index_of
        self._shared: dict[PathInfo, PathInfo] = {}
        self._recent: dict[tuple[bytes, str], PathInfo] = {}  # of the last backends requested, by address and node
        self._faults: dict[int, str] = {}  # by id of a route: why it takes no packet, '' when it does
        self._behind: dict[int, PathInfo] = {}  # by id of a route with a gateway: the same for all packets on it
        self._pods = frozenset(
            link.index for link in network.links.values() if is_pod_device(link.name, settings.pod_devices)
        )
        self._sources: dict[tuple[int, Route | None], bytes] = {}
        self._kept: dict[tuple[int, int], frozenset[bytes]] = {}  # by width and device, ANY_DEVICE: of the whole node
        self._extra_snat: dict[int, tuple[ExtraSnatAddress, ...]] = {}  # by width

    @property
    def hops(self) -> set[Hop]:
        """The neighbours that backends need."""
        return self.needs.hops

    @property
    def unusable(self) -> dict[bytes, str]:
        """Addresses of backends that cannot be reached, and why."""
        return self.needs.unusable

    @property
    def forwards(self) -> set[Family]:
        """Families with a backend that is no socket of this node: the kernel must forward."""
        return self.needs.forwards

    @property
    def outputs(self) -> set[int]:
        """Devices by which remote backends are reached: their replies arrive there."""
        return self.needs.outputs

    def settle(self) -> bool:
        """Mark that a plan is written: from now on a recount of the backends in use covers every answer so far.

        Returns whether a recount may find less: not after the first plan.
        """
        self._pending = PathNeeds()
        self._forget_answers()
        earlier, self._settled = self._settled, True
        return earlier

    def recounting(self, backends: Iterable[Backend]) -> Cooperative[None]:
        """Set `needs` to those of `backends`, the ones in use, and of the answers since `settle`: a plan may be in progress."""
        self._recount = recount = PathNeeds()
        noting = (recount,)
        recount.update(self._pending)
        self._forget_answers()
        for number, backend in enumerate(backends):
            self._noting = noting
            self._find_path(backend)
            if number % BETWEEN_YIELDS == 0:
                self._forget_answers()  # needs of a plan are recorded by the plan
                yield
        self.needs, self._recount = recount, None
        self._forget_answers()

    def _forget_answers(self) -> None:
        """Resolve each path again to record its needs: always, for the plan in progress, in the recount if there is one."""
        self._noting = (self.needs, self._pending, *([self._recount] if self._recount else []))
        self._noted.clear()
        self._recent.clear()
        self._behind.clear()

    def __call__(self, backend: Backend) -> PathInfo:
        """Return the path to this backend."""
        key = (backend.address.address, backend.node_name)
        known = self._recent.get(key)
        if known is None:
            if len(self._recent) >= RECENT:
                self._recent.clear()
            known = self._recent[key] = self._find_path(backend)
        return known

    def _find_path(self, backend: Backend) -> PathInfo:
        address, network = backend.address.address, self.network
        if network.is_own(address):
            return self._share(PathInfo(b"", UNKNOWN_HOP, MAX_MTU, local=True, host=True))
        route = network.route(address)
        family = Family.of(address)
        if family not in self._noted:
            self._noted.add(family)
            for needs in self._noting:
                needs.forwards.add(family)
        why = self._faults.get(id(route))
        if why is None:
            why = self._faults[id(route)] = self._fault(route)
        if why:
            for needs in self._noting:
                needs.unusable[address] = why
        local = self._is_on_this_node(backend, route)
        if local or route is None or not route.gateway:
            return self._share(self._find(address, route, local=local))
        known = self._behind.get(id(route))
        if known is None:
            known = self._behind[id(route)] = self._share(self._find(address, route, local=False))
        return known

    def output(self, backend: Backend) -> int | None:
        """Return the device by which packets leave to a backend, NO_OUTPUT for one on this node, None where no packet can.

        For a route with several next hops it is the first one's. Records nothing in `needs`.
        """
        route = self.network.route(backend.address.address)
        if self.network.is_own(backend.address.address) or self._is_on_this_node(backend, route):
            return NO_OUTPUT
        return None if route is None or self._fault(route) else route.ifindex

    def _is_on_this_node(self, backend: Backend, route: Route | None) -> bool:
        """Return whether a backend without an address of this node is one of its pods."""
        if backend.node_name:
            return backend.node_name == self.settings.node_name
        return route is not None and route.ifindex in self._pods

    def _fault(self, route: Route | None) -> str:
        """Return why this route takes no packet; '' when it does."""
        if route is None:
            return "there is no route to it"
        if not route.unicast:
            return "its route refuses packets (unreachable, prohibit, blackhole)"
        link = self.network.links.get(route.ifindex)
        if link is None:
            return "" if not route.simple else "the device of its route is gone"
        return "" if link.up else f"device {link.name} is down"

    def _share(self, info: PathInfo) -> PathInfo:
        return self._shared.setdefault(info, info)

    def _find(self, address: bytes, route: Route | None, *, local: bool) -> PathInfo:
        link = self.network.links.get(route.ifindex) if route else None
        mtu, source = self._mtu(route, link), self._source(address, route)
        extra_snat, kept = (
            self._extra_snat_of(len(address)),
            self._kept_sources(len(address), source, route, local=local),
        )
        if local:
            # the source is for flows that cannot keep the client's address: a hairpin pod, two equal flows of one client
            return PathInfo(source, UNKNOWN_HOP, mtu, local=True, host=False, extra_snat=extra_snat, kept=kept)
        if link is not None:
            for needs in self._noting:
                needs.outputs.add(link.index)
        hop = self._hop(address, route, link)
        keeps = self.settings.keeps_pods
        return PathInfo(source, hop, mtu, local=False, host=False, keeps_pod=keeps, extra_snat=extra_snat, kept=kept)

    def _hop(self, address: bytes, route: Route | None, link: Link | None) -> int:
        if route is None or link is None or self.network.policy(address) or not (route.simple and route.unicast):
            return UNKNOWN_HOP
        if not _sends_frames(link):
            return UNKNOWN_HOP
        hop = (link.index, route.gateway or address)
        for needs in self._noting:
            needs.hops.add(hop)
        return self._index_of(hop)

    @staticmethod
    def _mtu(route: Route | None, link: Link | None) -> int:
        if route is None or link is None:
            return MAX_MTU
        return min(route.mtu or link.mtu, link.mtu, MAX_MTU)

    def _source(self, address: bytes, route: Route | None) -> bytes:
        key = (len(address), route)
        known = self._sources.get(key)
        if known is None:
            extra_snat = self.settings.extra_snat.addresses()
            known = self._sources[key] = preferred_source(
                self.network, self.settings.node_ips, address, route, extra_snat
            )
        return known

    def _kept_sources(self, width: int, source: bytes, route: Route | None, *, local: bool) -> frozenset[bytes]:
        """Return the addresses that a path keeps as its source, even if a new path would get `source`.

        None where the route sets its source (`src`). Else those of the output device and of loopback, which counts for every
        device; without addresses there, and for a backend on this node, all of the node. If `source` is an address of --node-ip,
        only those of --node-ip.
        """
        if route is not None and route.prefsrc and not route.connected:
            return frozenset()
        device = ANY_DEVICE if local or route is None else route.ifindex
        known = self._kept.get((width, device))
        if known is None:
            usable = [a for a in self.network.addresses if len(a.address) == width and (a.source or a.deprecated)]
            on_device = [a for a in usable if a.ifindex == device]
            chosen = [a for a in usable if a.ifindex in (device, LOOPBACK)] if on_device else usable
            known = self._kept[width, device] = frozenset(a.address for a in chosen)
        given = self.settings.node_ips
        return known.intersection(given) if source in given else known

    def _extra_snat_of(self, width: int) -> tuple[ExtraSnatAddress, ...]:
        """Return the extra SNAT addresses of a family. A path that has one of them first leaves it out (extra_snat_paths.py)."""
        known = self._extra_snat.get(width)
        if known is None:
            known = self._extra_snat[width] = tuple(
                ExtraSnatAddress(number, address, self.network.has(address))
                for number, address in self.settings.extra_snat.of_width(width)
            )
        return known


def gateways(network: NodeNetwork) -> list[Hop]:
    """Return the neighbours that lead to other networks, those of the shortest prefixes first (the default gateways).

    Replies to clients use them. Clients and backends without a gateway are not among them.
    """
    out: dict[Hop, None] = {}
    for route in sorted((*network.routes4.routes, *network.routes6.routes), key=lambda route: route.bits):
        if route.unicast:
            out |= dict.fromkeys(
                (i, gateway) for i, gateway in ((route.ifindex, route.gateway), *route.others) if gateway
            )
    return [hop for hop in out if _sends_frames(network.links.get(hop[0]))]


def _sends_frames(link: Link | None) -> bool:
    return link is not None and link.up and len(link.mac) == ETHERNET_ADDRESS


def is_pod_device(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a --pod-device pattern (shell style) matches this device."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def preferred_source(
    network: NodeNetwork,
    node_ips: tuple[bytes, ...],
    address: bytes,
    route: Route | None,
    extra_snat: Collection[bytes] = (),
) -> bytes:
    """Return the source address for packets from this node to `address`; b'' when the node has none of the family.

    The route's `src` first, then an address of the output device (one the next hop shares a subnet with, one given by --node-ip,
    any), then --node-ip, then any: as the kernel does for a socket without a bound address. Among equal candidates, one of
    `extra_snat` comes last: it is reserved for flows that find no port of the first one.
    """
    if route is not None and route.prefsrc:
        return route.prefsrc
    family = [a for a in network.addresses if len(a.address) == len(address) and a.source]
    family.sort(key=lambda a: a.address in extra_snat)
    given = [ip for ip in node_ips if len(ip) == len(address)]
    if route is not None:
        on_device = [a for a in family if a.ifindex == route.ifindex]
        nearby = _first_containing(on_device, route.gateway or address)
        chosen = nearby or next((a.address for a in on_device if a.address in given), b"")
        if chosen or on_device:
            return chosen or on_device[0].address
    return given[0] if given else family[0].address if family else b""


def _first_containing(addresses: list[NodeAddress], neighbour: bytes) -> bytes:
    return next((a.address for a in addresses if contains(a.address, a.bits, neighbour)), b"")
