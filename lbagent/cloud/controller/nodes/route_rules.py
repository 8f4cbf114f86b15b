"""Which routes to pods are missing and which are superfluous. Pure: no calls of a provider.

Source: k8s.io/cloud-provider, controllers/route/route_controller.go (behaviour).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from msgspec import Struct

from lbagent.cloud.controller.cluster_cidrs import Network
from lbagent.cloud.provider_api.provider_parts import Route
from lbagent.cloud.provider_api.provider_records import Node


class RoutePlan(Struct, frozen=True):
    """The changes: deletions first. `told` are the Nodes whose condition gets the result."""

    deleted: tuple[Route, ...] = ()
    created: tuple[tuple[Node, Route], ...] = ()
    told: tuple[Node, ...] = ()


def plan_routes(nodes: Sequence[Node], routes: Sequence[Route], cluster_cidrs: Sequence[Network]) -> RoutePlan:
    """Return the changes that match the routes to the Nodes' pod CIDRs; routes outside the cluster's CIDRs are not changed."""
    wanted = {(node.name, _network(cidr)): node for node in nodes for cidr in node.pod_cidrs}
    kept: set[tuple[str, Network | None]] = set()
    deleted: list[Route] = []
    for route in routes:
        key = (route.target_node, _network(route.destination))
        node = wanted.get(key)
        if node is not None and key not in kept and _leads_to(route, node):
            kept.add(key)
        elif _is_of(route, cluster_cidrs):
            deleted.append(route)
    created = [
        (node, _new_route(node, cidr))
        for node in nodes
        for cidr in dict.fromkeys(node.pod_cidrs)
        if (node.name, _network(cidr)) not in kept
    ]
    targets = {route.target_node for route in routes}
    told = [node for node in nodes if node.pod_cidrs or node.name in targets]
    return RoutePlan(tuple(deleted), tuple(created), tuple(told))


def _new_route(node: Node, cidr: str) -> Route:
    return Route("", node.name, cidr, target_addresses=node.addresses)


def _leads_to(route: Route, node: Node) -> bool:
    is_current = not route.compares_addresses or set(route.target_addresses) == set(node.addresses)
    return is_current and not route.blackhole


def _is_of(route: Route, cluster_cidrs: Sequence[Network]) -> bool:
    """Return whether the first or the last address of a route is in the cluster's ranges."""
    network = _network(route.destination)
    if network is None:
        return False
    return any(network[0] in cidr or network[-1] in cidr for cidr in cluster_cidrs)


def _network(cidr: str) -> Network | None:
    try:
        return ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return None
