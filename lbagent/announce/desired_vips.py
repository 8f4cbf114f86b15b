"""Which addresses to announce, how, and from which nodes, by the objects that every node reads. Pure.

served_addresses.py determines whether the programs of this node serve an address: only this node has the states that its
operator set, and the weights of its Pods. Its Lease names for the other nodes what it does not serve although the objects admit it.
Source: Kubernetes' own service controller (the label); KEP-1669 (terminating endpoints).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from lbagent.announce.announce_refusal import AnnounceRefusal, RefusalReason
from lbagent.model.family import Family
from lbagent.model.select import can_serve
from lbagent.model.service import CIDR, is_in_any
from lbagent.objects.records import EndpointSlice, Node, ObjectSnapshot, Service
from lbagent.pools.announcement import BGP, L2, L2Settings
from lbagent.pools.pool import AddressPool
from lbagent.pools.read_pools import PoolsFile


class DesiredVip(Struct, frozen=True):
    """An address of a pool that Services use.

    `modes` are in the order l2, bgp. `has_endpoint`: an endpoint of its family can take new flows (model/select.py). `nodes` None:
    each node may announce it; else those with such an endpoint, as every Service of the address has policy Local.
    """

    address: bytes
    pool: str
    modes: tuple[str, ...]
    services: tuple[str, ...]  # keys, sorted
    has_endpoint: bool = False
    nodes: frozenset[str] | None = None

    @property
    def is_local(self) -> bool:
        """Whether only nodes with an endpoint may announce it."""
        return self.nodes is not None

    def admits(self, node: str) -> bool:
        """Return whether the traffic policies let a node announce it."""
        return self.nodes is None or node in self.nodes

    def is_withheld(self, node: str, *, is_served: bool) -> bool:
        """Return whether a node's programs do not serve an address that the objects admit on that node.

        An address without any endpoint is not withheld: its clients get a rejection.
        """
        return not is_served and self.has_endpoint and self.admits(node)


class _Use(NamedTuple):
    service: Service
    nodes: frozenset[str]  # of its endpoints that can take new flows; '' where an endpoint names none


class DesiredVips:
    """The addresses to announce, updated by changes: an update costs little more than the changes since the previous one."""

    def __init__(self, *, external_ips: bool, external_ip_ranges: tuple[CIDR, ...] = ()) -> None:
        """`external_ips`: externalIPs are served here (with ranges: those in one of them), and so announced."""
        self._external_ips, self._external_ip_ranges = external_ips, external_ip_ranges
        self._begin_anew(PoolsFile())

    def use_external_ips(self, *, external_ips: bool, external_ip_ranges: tuple[CIDR, ...]) -> None:
        """Change which externalIPs are announced; the next update reads all objects again."""
        self._external_ips, self._external_ip_ranges = external_ips, external_ip_ranges
        self._is_outdated = True

    def _begin_anew(self, pools: PoolsFile) -> None:
        self.vips: dict[bytes, DesiredVip] = {}
        self._pools, self._objects, self._is_outdated = pools, ObjectSnapshot(), False
        self._users: dict[bytes, set[str]] = {}  # address -> keys of Services
        self._slices: dict[str, dict[str, EndpointSlice]] = {}  # key of a Service -> its slices by their keys

    def update(self, objects: ObjectSnapshot, pools: PoolsFile) -> set[bytes]:
        """Update from all present objects; return the addresses for which something changed."""
        before: Collection[bytes] = ()
        if pools is not self._pools or self._is_outdated:
            before = self.vips
            self._begin_anew(pools)
        old, self._objects = self._objects, objects
        services = _changed(old.services, objects.services)
        addresses = {address for key in services for address in self._take_service(old, key)}
        with_others = _changed(old.endpoints, objects.endpoints).union(
            *(self._take_slice(old, key) for key in _changed(old.slices, objects.slices))
        )
        for key in with_others - services:
            addresses |= self._addresses(objects.services.get(key))
        return {address for address in addresses if self._decide(address)}.union(before)

    def _addresses(self, service: Service | None) -> set[bytes]:
        if service is None or service.ignored:
            return set()
        external = service.external_ips if self._external_ips else ()
        return {*service.ingress, *(each for each in external if is_in_any(each, self._external_ip_ranges))}

    def _take_service(self, old: ObjectSnapshot, key: str) -> set[bytes]:
        """Update from a Service; return its addresses, also the previous ones."""
        before, after = self._addresses(old.services.get(key)), self._addresses(self._objects.services.get(key))
        for address in before - after:
            self._users[address].discard(key)
        for address in after:
            self._users.setdefault(address, set()).add(key)
        return before | after

    def _take_slice(self, old: ObjectSnapshot, key: str) -> set[str]:
        """Update from a slice; return the keys of its Service, before and after: its label names it."""
        before, after = old.slices.get(key), self._objects.slices.get(key)
        if before is not None and (known := self._slices.get(before.service_key)):
            known.pop(key, None)
            if not known:
                del self._slices[before.service_key]
        if after is not None:
            self._slices.setdefault(after.service_key, {})[key] = after
        return {piece.service_key for piece in (before, after) if piece is not None}

    def _decide(self, address: bytes) -> bool:
        """Decide about an address; return whether the decision changed."""
        before = self.vips.pop(address, None)
        users = sorted(self._users.get(address, ()))
        pool = self._pools.pool_of(address)
        if not users:
            self._users.pop(address, None)
        elif pool and pool.announce:
            self.vips[address] = self._vip(address, pool, users)
        return self.vips.get(address) != before

    def _vip(self, address: bytes, pool: AddressPool, users: Sequence[str]) -> DesiredVip:
        services, family = self._objects.services, Family.of(address)
        # As for frontends (resolve/ownership.py): externalIPs do not affect an address that a Service was given.
        claims = [key for key in users if address in services[key].ingress] or users
        uses = [_Use(services[key], self._nodes_with_endpoints(services[key], family)) for key in claims]
        return DesiredVip(
            address,
            pool.name,
            tuple(mode for mode in (L2, BGP) if mode in pool.announce),
            tuple(users),
            any(use.nodes for use in uses),
            _admitted(uses),
        )

    def _nodes_with_endpoints(self, service: Service, family: Family) -> frozenset[str]:
        """Return the nodes of a Service's endpoints that can take new flows of a family.

        Those of an Endpoints object count only where there is no slice, those of a slice where it has a port of the Service.
        """
        found: Collection[EndpointSlice] = self._slices.get(service.key, {}).values()
        if not found and (old := self._objects.endpoints.get(service.key)):
            found = old.slices
        ports = {(port.name, port.protocol) for port in service.ports}
        return frozenset(
            each.node
            for piece in found
            if piece.family == family and any((port.name, port.protocol) in ports for port in piece.ports)
            for each in piece.endpoints
            if can_serve(each)
        )


def _changed(old: Mapping[str, object], new: Mapping[str, object]) -> set[str]:
    """Return the keys of objects that were added, deleted or changed."""
    return {key for key, obj in new.items() if old.get(key) is not obj} | (old.keys() - new.keys())


def _admitted(uses: Collection[_Use]) -> frozenset[str] | None:
    """Return the nodes with an endpoint where all Services are of policy Local; None where one is not."""
    if not all(use.service.external_local for use in uses):
        return None
    return frozenset(node for use in uses for node in use.nodes)


def node_refusal(node: Node | None, settings: L2Settings, *, for_l2: bool = True) -> AnnounceRefusal | None:
    """Return why a node announces nothing, None when it may. A missing Node object in a folder is no reason."""
    if node is None:
        return None
    found = (
        (node.excluded, RefusalReason.EXCLUDED),
        (node.leaves, RefusalReason.LEAVES),
        (node.shuts_down, RefusalReason.SHUTS_DOWN),
        (node.cordoned, RefusalReason.CORDONED),
        (for_l2 and not settings.node_selector.matches(node.labels), RefusalReason.NOT_SELECTED),
    )
    return next((AnnounceRefusal(reason) for holds, reason in found if holds), None)
