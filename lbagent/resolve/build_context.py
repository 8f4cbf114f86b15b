"""What rows of Services and of HostPorts depend on beside the objects they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.select import EndpointInfo
from lbagent.resolve.frontends import LocalNode
from lbagent.resolve.overrides import Overrides


class BuildContext(Struct, frozen=True, gc=False):
    """The node, the states and weights of backends, and where they are; the same for every row of one run."""

    node: LocalNode
    has_row: Callable[[L3n4Addr], bool] | None = (
        None  # the agent: an endpoint that exists keeps its backend row, if it has one
    )
    overrides: Overrides = Overrides()
    weight_of_pod: Callable[[str, bytes], int | None] = lambda _pod, _address: None
    nodes: Mapping[bytes, str] = MappingProxyType({})  # of addresses whose objects differ (placement.py)

    def node_of(self, info: EndpointInfo) -> tuple[str, bool]:
        """Return `node_at` of an endpoint."""
        return self.node_at(info.address.address, info.node_name)

    def node_at(self, address: bytes, name: str) -> tuple[str, bool]:
        """Return the node an address is on whose endpoint names one or '', '' = unknown, and whether it is this one.

        §10: without a node an address of this node is local too. Local policies ask the endpoint alone (model/select.py).
        """
        here, nodes = self.node, self.nodes
        if nodes:
            name = nodes.get(address, name)
        return name, (name == here.name) if name else address in here.addresses
