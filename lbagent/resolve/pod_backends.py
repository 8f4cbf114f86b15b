"""The backends of a Pod: the endpoints that refer to it, its hostPorts, and its ports behind local redirects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from lbagent.model.address import L3n4Addr
from lbagent.model.cooperative import Cooperative, run_whole
from lbagent.objects.records import EndpointSlice, ObjectSnapshot, Pod


def backends_of_pod(snapshots: Iterable[ObjectSnapshot], pod: str) -> set[L3n4Addr]:
    """Return the addresses of all backends of a Pod in the objects, by its key, even if no Service serves them."""
    return set(run_whole(pods_of_backends(snapshots, (pod,))))


def pods_of_backends(snapshots: Iterable[ObjectSnapshot], pods: Collection[str]) -> Cooperative[dict[L3n4Addr, str]]:
    """Return the Pods (of these keys) of each of their backends, in one pass over all objects."""
    found: dict[L3n4Addr, str] = {}
    for objects in snapshots:
        for piece in _each_slice(objects):
            for endpoint in piece.endpoints:
                if endpoint.pod in pods:
                    addresses = (L3n4Addr(endpoint.address, port.port, port.protocol) for port in piece.ports)
                    found.update(dict.fromkeys(addresses, endpoint.pod))
            yield
        for pod in pods:
            if known := objects.pods.get(pod):
                found.update(dict.fromkeys(_own_backends(known, objects), pod))
            yield
    return found


def pods_at(snapshots: Iterable[ObjectSnapshot], addresses: Collection[L3n4Addr]) -> Cooperative[dict[L3n4Addr, str]]:
    """Return the key of the Pod of each of these backends, if it has one."""
    found: dict[L3n4Addr, str] = {}
    wanted = {address.address for address in addresses}
    for objects in snapshots:
        for piece in _each_slice(objects):
            for endpoint in piece.endpoints:
                if endpoint.pod and endpoint.address in wanted:
                    ports = (L3n4Addr(endpoint.address, port.port, port.protocol) for port in piece.ports)
                    found.update(dict.fromkeys((each for each in ports if each in addresses), endpoint.pod))
            yield
        for pod in objects.pods.values():
            found.update(dict.fromkeys((each for each in _own_backends(pod, objects) if each in addresses), pod.key))
            yield
    return found


def _own_backends(pod: Pod, objects: ObjectSnapshot) -> Iterator[L3n4Addr]:
    """Yield the backends that a Pod is without an endpoint."""
    ports = [(port.target_port, port.protocol) for port in pod.host_ports]
    for policies in (objects.local_redirects, objects.cilium_local_redirects):
        for policy in policies.values():
            if policy.selects(pod):
                ports += [(port.port, port.protocol) for port in policy.backend_ports]
    return (L3n4Addr(ip, port, protocol) for ip in pod.ips for port, protocol in ports)


def _each_slice(objects: ObjectSnapshot) -> Iterator[EndpointSlice]:
    yield from objects.slices.values()
    for endpoints in objects.endpoints.values():
        yield from endpoints.slices
