"""A provider on the LAN of a real router, a cluster in memory, and an outside client."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lbagent.cloud.edge.edge_balancers import EdgeBalancers
from lbagent.cloud.edge.edge_provider import EdgeProvider
from lbagent.cloud.edge.protocols.port_mapping import HeldMapping, PortMapping
from lbagent.cloud.edge.protocols.upnp_gateway import UpnpGateway, open_gateway
from lbagent.cloud.provider import LoadBalancerStatus, Service
from lbagent.http.http_client import parse_url
from lbagent.testing.provider import CLUSTER, FakeCluster, ProviderSuite
from tests.lab.netns import Namespace
from tests.lab.router import OTHER, WAN, Router

ASKS = {"midokura.com/load-balancer-type": "upnp-igd"}
WITHIN_S = 30.0
FAST = {"poll": "1s"}
UPNP = f"gateway: {Router.url}\nprotocols: [upnp]\n"


def port(name: str, number: int, node_port: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"name": name, "protocol": protocol, "port": number, "targetPort": 8080, "nodePort": node_port}


def manifest(
    number: int, *ports: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return the Service shop/web-NUMBER, by default with port 80 at node port 30000 + NUMBER."""
    found = ProviderSuite().manifest(number)
    found["metadata"]["annotations"] = ASKS if annotations is None else annotations
    found["spec"]["ports"] = list(ports) or [port("http", 80, 30000 + number)]
    found["spec"] |= spec
    return found


async def until(condition: Callable[[], Any], what: str, within_s: float = WITHIN_S, step_s: float = 0.05) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := condition():
            return found
        await asyncio.sleep(step_s)
    raise AssertionError(f"{what}: not within {within_s:g} s")


class EdgeLab:
    """One process of the controller, without an API server."""

    def __init__(self, router: Router, config: str, cluster: FakeCluster | None = None) -> None:
        self.router, self.provider = router, EdgeProvider(config)
        self.cluster = cluster or FakeCluster(("n1",))
        self.stop = asyncio.Event()

    @property
    def balancers(self) -> EdgeBalancers:
        found = self.provider.load_balancer()
        assert isinstance(found, EdgeBalancers)
        return found

    async def begin(self) -> EdgeLab:
        await self.provider.initialize(self.cluster, self.stop)
        return self

    async def end(self) -> None:
        """As SIGKILL: no request to the router."""
        polling = self.provider._polling
        assert polling is not None
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)

    async def ensure(self, found: dict[str, Any] | Service) -> Service:
        """Ensure a Service, and write its status; return the new Service."""
        service = found if isinstance(found, Service) else self.cluster.add(found)
        status = await self.balancers.ensure(CLUSTER, service, self.cluster.nodes)
        return self.cluster.set_status(service, status)

    async def delete(self, service: Service) -> None:
        await self.balancers.ensure_deleted(CLUSTER, service)

    async def status(self, service: Service) -> LoadBalancerStatus | None:
        return await self.balancers.get(CLUSTER, service)

    async def held(self) -> list[HeldMapping]:
        """Return the router's list."""
        gateway = await self.balancers.keeper.connect()
        return sorted(await gateway.mappings(), key=lambda each: each.mapping.outside)

    async def texts(self) -> list[str]:
        return [f"{each.mapping} {each.mapping.description}" for each in await self.held()]

    async def add_foreign(self, number: int, description: str = "game", client: str = OTHER) -> PortMapping:
        """Create a mapping as another program, on the other host or on this one."""
        mapping = PortMapping("TCP", number, client, 40000, description)
        await self._at_gateway(mapping, lambda gateway: gateway.add(mapping, 3600))
        return mapping

    async def forget(self, mapping: PortMapping) -> None:
        """Remove a mapping without the provider."""
        await self._at_gateway(mapping, lambda gateway: gateway.remove(mapping))

    async def _at_gateway(self, mapping: PortMapping, call: Callable[[UpnpGateway], Awaitable[None]]) -> None:
        async def run() -> None:
            await call(await open_gateway(parse_url(Router.url)))

        space = self.router.other if mapping.client == OTHER else self.router.host
        await asyncio.to_thread(lambda: space.call(asyncio.run, run()))

    def reasons(self) -> list[str]:
        return [event.reason for event in self.cluster.events]


def fetch(where: tuple[str, int]) -> str:
    """Return a server's answer, `refused` if there is none."""
    try:
        with socket.create_connection(where, 3) as client:
            return client.recv(100).decode()
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"


async def ask(space: Namespace, number: int, host: str = WAN) -> str:
    """Send a request from another namespace."""
    return await asyncio.to_thread(space.call, fetch, (host, number))


async def serve(number: int) -> asyncio.Server:
    """Serve a node port: answer with the client's address."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(str(writer.get_extra_info("peername")[0]).encode())
        writer.close()

    return await asyncio.start_server(answer, "0.0.0.0", number)


def play(
    router: Router, config: str, body: Callable[[EdgeLab], Awaitable[None]], *, nodes: tuple[str, ...] = ("n1",)
) -> None:
    """Run a test's body on the LAN."""

    async def run() -> None:
        lab = await EdgeLab(router, config, FakeCluster(nodes)).begin()
        try:
            await body(lab)
        finally:
            await lab.end()

    with router.host.entered():
        asyncio.run(run())
