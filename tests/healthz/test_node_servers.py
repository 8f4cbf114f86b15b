"""Rules A9, A15, A16: the ports of a node with a loop, real objects, and maps in memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.config import Config
from lbagent.healthz import node_servers
from lbagent.healthz.node_servers import NodeServers
from lbagent.http.http_server import Request, Response
from lbagent.objects.records import Node, Origin
from tests.healthz.asking import ask
from tests.sync import rig
from tests.sync.rig import ListSource, make, running


def free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class World:
    def __init__(self, name: str = "kube", **settings: Any) -> None:
        self.healthz, self.metrics = free(), free()
        config = Config(
            kubeconfig="k", node_name="me", healthz_bind_address=f"127.0.0.1:{self.healthz}",
            metrics_bind_address=f"127.0.0.1:{self.metrics}", **settings,
        )  # fmt: skip
        self.source = ListSource(name)
        self.loop, self.bpf, _ = make(None, self.source)
        self.servers = NodeServers(config, self.loop, self.bpf, [self.bpf], [self.source])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def metrics(request: Request) -> Response:
            return Response(200, request.path.encode())

        task = asyncio.create_task(self.servers.run(metrics))
        try:
            async with running(self.loop):
                await asyncio.sleep(0.05)
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a9_the_node() -> None:
    world = World()
    async with world.running():
        assert (await ask(world.healthz, "/healthz")).status == 503  # the API server does not have it
        node = Node("me", Origin(source="kube"))
        for changed, status in ((node, 200), (replace(node, leaves=True), 503), (node, 200)):
            world.source.put(changed)
            assert (await ask(world.healthz, "/healthz")).status == status
            assert (await ask(world.healthz, "/livez")).status == 200
        world.source.drop(node)
        assert (await ask(world.healthz, "/healthz")).status == 503
        world.source.trusted = False  # the API server does not answer: no information about the node
        assert (await ask(world.healthz, "/healthz")).status == 200


async def test_a9_without_a_kubernetes_api_a_node_needs_no_object() -> None:
    world = World("folder")
    async with world.running():
        assert (await ask(world.healthz, "/healthz")).status == 200


async def test_a9_a_state_that_cannot_be_written_is_unhealthy_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("folder")

    async def fail(_desired: object) -> None:
        raise OSError("no maps")

    async with world.running():
        world.source.first_list(rig.service(1))
        await world.loop.settled()
        assert world.loop.runners[0].pending_since is None
        world.bpf.reconcile = fail  # type: ignore[method-assign]
        world.source.put(rig.service(2))
        await world.loop.settled()
        since = world.loop.runners[0].pending_since
        assert since is not None
        assert (await ask(world.healthz, "/healthz")).status == 200
        world.loop.runners[0].pending_since = since - 61
        world.source.put(rig.service(3))  # a newer one does not restart the minute
        await world.loop.inbox.settled()
        assert (await ask(world.healthz, "/healthz")).status == 503
        assert (await ask(world.healthz, "/livez")).status == 503


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/metrics", "/other"])
async def test_any_method_is_answered_as_get_and_head_without_a_body(path: str) -> None:
    world = World()
    async with world.running():
        port = world.metrics if path == "/metrics" else world.healthz
        got, options = await ask(port, path), await ask(port, path, method="OPTIONS")
        head = await ask(port, path, method="HEAD")
    assert options.status == head.status == got.status
    assert len(got.text) == len(options.text) > 0
    assert (head.text, head.headers["Content-Length"]) == ("", str(len(got.text)))


async def test_the_metrics_port() -> None:
    world = World()
    async with world.running():
        assert (await ask(world.metrics, "/metrics")).text == "/metrics"


async def test_a_port_that_is_taken_is_a_problem_until_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-proxy has the same ports while both run."""
    monkeypatch.setattr(node_servers, "BIND_RETRY_DELAY_S", 0.05)
    world = World()
    with socket.create_server(("127.0.0.1", world.healthz)), socket.create_server(("127.0.0.1", world.metrics)):
        async with world.running():
            assert list(world.servers.problems()) == [
                (f"/healthz 127.0.0.1:{world.healthz}", "Address already in use", False),
                (f"metrics 127.0.0.1:{world.metrics}", "Address already in use", False),
            ]
    async with world.running():
        assert not list(world.servers.problems())
        assert (await ask(world.healthz, "/livez")).status == 200


async def test_the_ports_close_with_the_agent() -> None:
    world = World()
    async with world.running():
        pass
    with pytest.raises(ConnectionRefusedError):
        await ask(world.healthz)
