"""Which backends a Pod has: the endpoints that name it, and its hostPorts."""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.model.address import L3n4Addr
from lbagent.objects.records import EndpointSlice, ObjectSnapshot


def backends_of_pod(snapshots: Iterable[ObjectSnapshot], pod: str) -> set[L3n4Addr]:
    """Return the addresses of every backend that objects give a Pod, by its key; whether a Service serves them is not asked."""
    found: set[L3n4Addr] = set()
    for objects in snapshots:
        for piece in objects.slices.values():
            _add(found, piece, pod)
        for endpoints in objects.endpoints.values():
            for piece in endpoints.slices:
                _add(found, piece, pod)
        if known := objects.pods.get(pod):
            found.update(L3n4Addr(ip, port.target_port, port.protocol) for ip in known.ips for port in known.host_ports)
    return found


def _add(found: set[L3n4Addr], piece: EndpointSlice, pod: str) -> None:
    for endpoint in piece.endpoints:
        if endpoint.pod == pod:
            found.update(L3n4Addr(endpoint.address, port.port, port.protocol) for port in piece.ports)
