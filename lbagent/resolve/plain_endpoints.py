"""The endpoints of a Service in the plain case, which is the usual one. Pure.

One slice, all ready, no weights, hints, states or dead nodes.

Then every endpoint is selectable for every client of a Cluster policy, and model/select.py would only sort them. All other cases
use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.family import Family
from lbagent.model.service import MAX_SLOTS
from lbagent.objects.records import Endpoint, EndpointSlice, ServicePort, SlicePort
from lbagent.resolve.build_context import BuildContext

_ADDRESS = attrgetter("address")


class PlainEndpoints(Struct, frozen=True, gc=False):
    """(address, node, zone, whether it is this node) of each endpoint, in slot order, and the ports of their slice."""

    places: tuple[tuple[bytes, str, str, bool], ...]
    ports: tuple[SlicePort, ...]

    def backends(self, port: ServicePort) -> tuple[Backend, ...] | None:
        """Return the backends of a Service's port, all selectable; None if the slice has the port twice."""
        name, protocol = port.name, port.protocol
        numbers = [each.port for each in self.ports if each.name == name and each.protocol is protocol]
        if len(numbers) != 1:
            return None if numbers else ()
        (number,), state = numbers, BackendState.ACTIVE
        return tuple(
            [
                Backend(
                    0,
                    L3n4Addr(address, number, protocol),
                    state,
                    node_name=node,
                    zone=zone,
                    fe_port_name=name,
                    local=local,
                )
                for address, node, zone, local in self.places
            ]
        )


def plain_endpoints(slices: Iterable[EndpointSlice], family: Family, context: BuildContext) -> PlainEndpoints | None:
    """Return the endpoints of one family if they are plain, else None."""
    pieces = [piece for piece in slices if piece.family == family]
    if len(pieces) != 1 or context.overrides or context.node.local_endpoint_weight != 1:
        return None
    (piece,) = pieces
    found = piece.endpoints
    if piece.weight is not None or len(found) > MAX_SLOTS or not all(_is_plain(each, context) for each in found):
        return None
    if len(set(map(_ADDRESS, found))) < len(found):
        return None
    places = []
    for each in sorted(found, key=_ADDRESS):
        node, local = context.node_at(each.address, each.node)
        places.append((each.address, node, each.zone, local))
    return PlainEndpoints(tuple(places), piece.ports)


def _is_plain(endpoint: Endpoint, context: BuildContext) -> bool:
    return (
        endpoint.ready
        and not (endpoint.for_zones or endpoint.for_nodes)
        and endpoint.state is None
        and endpoint.node not in context.dead_nodes
        and context.weight_of_pod(endpoint.pod, endpoint.address) is None
    )
