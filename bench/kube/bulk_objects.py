"""Ten thousand Services in a real API server: created through its API by many requests at a time.

Each Service has two ports and one EndpointSlice; no controller runs. The slices have the controller's form.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.kube_api.control_plane import PORT, ControlPlane

Obj = dict[str, Any]
ENDPOINTS = 10
SERVICES, SLICES = "/api/v1/namespaces/default/services", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
PORTS = (("http", 80, 8080), ("metrics", 9090, 9091))  # name, port, target port
ROUTE = "route add 10.128.0.0/9 via 10.77.1.2"  # to the endpoints: the agent looks up a route to each
AT_ONCE = 24


def vip(number: int) -> str:
    """Return the ClusterIP of Service `number`."""
    return f"10.97.{number >> 8}.{number & 255}"


def endpoint_address(service: int, number: int) -> str:
    """Return the address of an endpoint; each is unique."""
    at = service * 64 + number
    return f"10.{128 + (at >> 16)}.{at >> 8 & 255}.{at & 255}"


def service(name: str, address: str, ports_of_it: int = len(PORTS)) -> Obj:
    """Return a Service of two ports, or of the first one."""
    ports = [
        {"name": port, "protocol": "TCP", "port": number, "targetPort": target}
        for port, number, target in PORTS[:ports_of_it]
    ]
    spec = {"type": "ClusterIP", "clusterIP": address, "selector": {"app": name}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def endpoints(name: str, addresses: Iterable[str], node: str = "node-far") -> list[Obj]:
    """Return ready endpoints, with the fields that the controller sets."""
    return [
        {
            "addresses": [address], "nodeName": node, "zone": "a", "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": f"{name}-{n}", "uid": f"00000000-0000-4000-8000-{n:012}"},
        }
        for n, address in enumerate(addresses)
    ]  # fmt: skip


def endpoint_slice(name: str, ready: list[Obj], ports: int = len(PORTS)) -> Obj:
    """Return the slice of a Service."""
    labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "bench.lbagent.io"}
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": f"{name}-a", "namespace": "default", "labels": labels},
        "ports": [{"name": port, "protocol": "TCP", "port": target} for port, _, target in PORTS[:ports]],
        "endpoints": ready,
    }  # fmt: skip


def numbered(number: int, count: int = ENDPOINTS, ports: int = len(PORTS)) -> tuple[Obj, Obj]:
    """Return Service `number` and its slice with so many endpoints and ports."""
    name = f"s{number}"
    addresses = [endpoint_address(number, n) for n in range(count)]
    return service(name, vip(number), ports), endpoint_slice(name, endpoints(name, addresses), ports)


class Writer:
    """Requests of the administrator, several at a time, on persistent connections."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        """Take a session to the server."""
        self._session = session

    async def send(self, method: str, path: str, body: Obj, kind: str = "application/json") -> Obj:
        """Send one object. Raises RuntimeError with the server's answer."""
        async with self._session.request(method, path, data=json.dumps(body), headers={"Content-Type": kind}) as answer:
            data = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {data[:300]!r}")
            return dict(json.loads(data))

    async def add(self, pairs: Iterable[tuple[Obj, Obj]]) -> None:
        """Make Services and their slices."""
        left = iter(pairs)

        async def work() -> None:
            for made, ends in left:
                await self.send("POST", SERVICES, made)
                await self.send("POST", SLICES, ends)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())


@asynccontextmanager
async def _writer(plane: ControlPlane) -> AsyncIterator[Writer]:
    context = ssl.create_default_context(cafile=plane.certificate)
    async with aiohttp.ClientSession(
        f"https://127.0.0.1:{PORT}",
        headers={"Authorization": f"Bearer {plane._admin}"},
        connector=aiohttp.TCPConnector(ssl=context, limit=AT_ONCE),
    ) as session:
        yield Writer(session)


def written(plane: ControlPlane, pairs: Iterable[tuple[Obj, Obj]]) -> None:
    """Write Services with their slices."""

    async def work() -> None:
        async with _writer(plane) as writer:
            await writer.add(pairs)

    run_in(plane, work())


def run_in(plane: ControlPlane, work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the namespace of the API server."""
    with plane.namespace.entered():
        return asyncio.run(work)
