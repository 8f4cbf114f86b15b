"""Which backends are on this node, and which devices lead to its pods. Pure. Source of the rule: docs/datapath.md."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lbagent.model.backend import Backend
from lbagent.net.paths import is_pod_device
from lbagent.net.snapshot import EMPTY, NodeNetwork
from lbagent.targets.nftables.chains import is_plain_pattern


class NodePlace:
    """Answers for one snapshot of the node's network; without one (EMPTY) by the name of the node and `node_ips`.

    `nodes` are the addresses of the cluster's nodes, for the rules of --egress-snat; None without it.
    """

    def __init__(
        self,
        node_name: str,
        pod_devices: tuple[str, ...],
        network: NodeNetwork = EMPTY,
        node_ips: Collection[bytes] = (),
        nodes: Collection[bytes] | None = None,
    ) -> None:
        self._node_name = node_name
        self._node_ips = frozenset(node_ips)
        self._network = network
        self._pods = frozenset(link.index for link in network.links.values() if is_pod_device(link.name, pod_devices))
        patterns = tuple(each for each in pod_devices if not is_plain_pattern(each))
        # Those whose pattern nft cannot match.
        self.devices: Sequence[str] = sorted(
            link.name for link in network.links.values() if is_pod_device(link.name, patterns)
        )
        own = (item.address for item in network.addresses)
        self.nodes = frozenset() if nodes is None else frozenset((*nodes, *node_ips, *own))
        # While it stays, each answer stays.
        routes = (*network.routes4.routes, *network.routes6.routes)
        self.signature = (
            frozenset(item.address for item in network.addresses),
            tuple(route for route in routes if route.ifindex in self._pods),
        )

    def is_local(self, backend: Backend) -> bool:
        """Return whether a backend is on this node."""
        address = backend.address.address
        if address in self._node_ips or self._network.is_own(address):
            return True
        if backend.node_name:
            return backend.node_name == self._node_name
        route = self._network.route(address)
        return route is not None and route.ifindex in self._pods
