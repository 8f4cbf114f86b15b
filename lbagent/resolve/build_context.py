"""The inputs of the SVCs of Services and HostPorts beside their own objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.select import EndpointInfo
from lbagent.objects.records import FailedChecks
from lbagent.resolve.frontends import LocalNode
from lbagent.resolve.local_redirects import Redirect
from lbagent.resolve.overrides import Overrides


class BuildContext(Struct, frozen=True, gc=False):
    """The node, the states and weights of backends, and their places; the same for every SVC of one run."""

    node: LocalNode
    # The agent: whether a backend has an entry, which an endpoint keeps while it exists.
    is_served: Callable[[L3n4Addr], bool] | None = None
    overrides: Overrides = Overrides()
    weight_of_pod: Callable[[str, bytes], int | None] = lambda _pod, _address: None
    failed_checks: Mapping[str, FailedChecks] = MappingProxyType({})  # by service key
    nodes: Mapping[bytes, str] = MappingProxyType({})  # of addresses with contradicting objects (placement.py)
    dead_nodes: frozenset[str] = frozenset()
    resets_dead_nodes: bool = False  # flows to endpoints of dead nodes end
    redirects: Mapping[L3n4Addr, Redirect] = MappingProxyType({})  # by frontend

    def ends_flows_of(self, info: EndpointInfo) -> bool:
        """Return whether flows to an endpoint that takes no new ones end, as if it had left its slice."""
        return self.resets_dead_nodes and info.node_is_dead

    def node_of(self, info: EndpointInfo) -> tuple[str, bool]:
        """Return `node_at` of an endpoint."""
        return self.node_at(info.address.address, info.node_name)

    def node_at(self, address: bytes, name: str) -> tuple[str, bool]:
        """Return the node of an address whose endpoint has this node or '', '' = unknown, and whether it is this node.

        §10: without a node, an address of this node is local, too. Local policies use the endpoint alone (model/select.py).
        """
        here, nodes = self.node, self.nodes
        if nodes:
            name = nodes.get(address, name)
        return name, (name == here.name) if name else address in here.addresses
