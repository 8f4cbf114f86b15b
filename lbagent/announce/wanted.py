"""Which addresses are to be announced, how, and may this node do it: out of objects, pools and the node. Pure.

Source: Kubernetes' own service controller (the label); KEP-1669 (endpoints of policy Local).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from lbagent.objects.records import Endpoints, EndpointSlice, Node, ObjectSnapshot, Service
from lbagent.pools.announcement import BGP, L2, L2Settings
from lbagent.pools.read_pools import PoolsFile


class WantedVip(Struct, frozen=True):
    """An address of a pool that Services have.

    `modes` are in the order l2, bgp. `has_endpoint`: a ready endpoint is somewhere. `nodes` None: each node may announce it;
    else those with a ready endpoint of a Service of policy Local.
    """

    address: bytes
    pool: str
    modes: tuple[str, ...]
    services: tuple[str, ...]  # keys, sorted
    has_endpoint: bool = False
    nodes: frozenset[str] | None = None

    def admits(self, node: str) -> bool:
        """Return whether the traffic policies let a node announce it."""
        return self.nodes is None or node in self.nodes


class _Use(NamedTuple):
    service: Service
    ready_on: frozenset[str]  # nodes of its ready endpoints; '' where an endpoint names none


def wanted_vips(objects: ObjectSnapshot, pools: PoolsFile, *, external_ips: bool) -> dict[bytes, WantedVip]:
    """Return what is to be announced, by address. `external_ips`: those of Services are served here, and so announced."""
    users: dict[bytes, list[Service]] = {}
    for service in objects.services.values():
        if not service.ignored:
            for address in dict.fromkeys((*service.ingress, *(service.external_ips if external_ips else ()))):
                users.setdefault(address, []).append(service)
    found = {address: pool for address in users if (pool := pools.pool_of(address)) and pool.announce}
    ready = _ready_nodes(objects, {service.key for address in found for service in users[address]})
    out = {}
    for address, pool in found.items():
        uses = [_Use(service, ready.get(service.key, frozenset())) for service in users[address]]
        out[address] = WantedVip(
            address,
            pool.name,
            tuple(mode for mode in (L2, BGP) if mode in pool.announce),
            tuple(sorted(use.service.key for use in uses)),
            any(use.ready_on for use in uses),
            _admitted(uses),
        )
    return out


def _admitted(uses: Collection[_Use]) -> frozenset[str] | None:
    """Return the nodes with an endpoint where all Services are of policy Local; None where one is not."""
    if not all(use.service.external_local for use in uses):
        return None
    return frozenset(node for use in uses for node in use.ready_on)


def _ready_nodes(objects: ObjectSnapshot, keys: Collection[str]) -> Mapping[str, frozenset[str]]:
    """Return the nodes of the ready endpoints of these Services; of an Endpoints object only where there is no slice."""
    slices: dict[str, list[EndpointSlice]] = {}
    for piece in objects.slices.values():
        if piece.service_key in keys:
            slices.setdefault(piece.service_key, []).append(piece)
    for key in keys:
        old: Endpoints | None = objects.endpoints.get(key)
        if key not in slices and old is not None:
            slices[key] = list(old.slices)
    return {
        key: frozenset(each.node for piece in pieces for each in piece.endpoints if each.ready)
        for key, pieces in slices.items()
    }


def node_refusal(node: Node | None, settings: L2Settings, *, for_l2: bool = True) -> str:
    """Return why a node announces nothing, '' when it may. A folder without the node's object is no reason."""
    if node is None:
        return ""
    if node.excluded:
        return "the node has the label node.kubernetes.io/exclude-from-external-load-balancers"
    if node.leaves:
        return "the node is about to go away"
    if node.shuts_down:
        return "the node is shutting down"
    if node.cordoned:
        return "the node is cordoned"
    if for_l2 and not settings.node_selector.matches(node.labels):
        return "the node has not the labels of l2.nodeSelector"
    return ""


def with_endpoints(vips: Iterable[WantedVip], mode: str) -> set[bytes]:
    """Return the addresses of a mode that an endpoint answers for."""
    return {vip.address for vip in vips if mode in vip.modes and vip.has_endpoint}
