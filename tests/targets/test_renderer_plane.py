"""Renderers driven by a real loop: the same calls for all, and one that fails or hangs delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.config import Config
from lbagent.errors import ConfigError
from lbagent.net.routes import Route, RouteTable
from lbagent.net.snapshot import Link, NodeNetwork
from lbagent.objects.records import Node, Origin
from lbagent.render import Difference, Interfaces
from lbagent.render.renderer_names import RendererError, Unavailable
from lbagent.render.service_calls import Surroundings, View
from lbagent.render.shared_calls import SharedCalls
from lbagent.resolve import Options, Resolver
from lbagent.sync.loop import SyncLoop
from lbagent.targets import renderer_plane
from lbagent.targets.data_plane import Feature
from lbagent.targets.renderer_plane import NodeSurroundings, RendererPlane
from tests.lab.netns import Stopwatch
from tests.render.noting_renderer import NotingRenderer
from tests.sync.rig import ListSource, endpoints, running, service

NODE = Node("me", Origin("n"), internal_ips=(bytes((10, 0, 0, 1)),))


class StillSurroundings(NodeSurroundings):
    """A node whose network is not read."""

    async def open(self) -> None:
        pass

    def take(self, network: NodeNetwork) -> None:
        self._take(network)


class World:
    """Some renderers in one loop."""

    def __init__(self, *renderers: NotingRenderer, **options: Any) -> None:
        self.shared = SharedCalls()
        self.surroundings = StillSurroundings(Config(), self.shared)
        self.planes = [
            self.plane(f"r{number}", lambda made=made: lambda _settings: made, **options)
            for number, made in enumerate(renderers)
        ]
        self.source = ListSource()
        self.loop = SyncLoop(Resolver(Options("me")), [self.source], self.planes)
        self.source.changed = self.loop.inbox.feed(self.source)

    def plane(self, name: str, factory: Callable[[], Any], **options: Any) -> RendererPlane:
        return RendererPlane(Config(), name, factory, {}, self.shared, self.surroundings, **options)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        for plane in self.planes:
            await plane.open(lambda: None)
        async with running(self.loop):
            yield
        for plane in self.planes:
            await asyncio.to_thread(plane.close)

    def error(self, number: int) -> str:
        return self.loop.runners[number].error


async def eventually(holds: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - renderers set no event
            await asyncio.sleep(0.01)


async def test_all_renderers_get_the_same_calls_in_the_same_order() -> None:
    one, other = NotingRenderer(), NotingRenderer()
    world = World(one, other)
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5), service(2))
        await world.loop.settled()
        other.wait_s = 0.3
        world.source.put(endpoints(1, 5, 6))
        await world.loop.settled(world.planes[0])
        world.source.put(endpoints(2, 7))
        await world.loop.settled(world.planes[0])
        world.source.drop(endpoints(1, 5, 6))
        await world.loop.settled()
        expected = [
            "resync default/s1",
            "flush",
            "update default/s1",
            "flush",
            "add default/s2",
            "flush",
            "delete default/s1",
            "flush",
        ]
        assert one.calls == other.calls == expected, "the slow one skips no call"
        assert all(plane.ready.is_set() for plane in world.planes)
        assert [svc.id for svc in world.planes[1].state.services if not svc.wildcard] != [0]
    assert (one.kept, other.kept) == (True, True)


async def test_a_renderer_that_raises_is_resynced_when_it_is_back() -> None:
    broken, good = NotingRenderer(), NotingRenderer()
    world = World(broken, good)
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled()
        broken.fail = RuntimeError("out of luck")
        world.source.put(endpoints(1, 5, 6))
        await world.loop.settled(world.planes[1])
        await eventually(lambda: world.error(0) != "")
        assert world.error(0) == "renderer r0: update_service raised RuntimeError: out of luck"
        assert good.calls[-2:] == ["update default/s1", "flush"]
        assert not world.loop.runners[0].in_sync
        broken.fail = None
        await eventually(lambda: world.loop.runners[0].in_sync)
        assert broken.calls == ["resync default/s1", "flush"] * 2
        assert good.calls == ["resync default/s1", "flush", "update default/s1", "flush"]
        world.source.put(endpoints(1, 6))
        await world.loop.settled()
        assert broken.calls[4:] == good.calls[4:] == ["update default/s1", "flush"]


@pytest.mark.parametrize("how", ["wait_s", "block_s"])
async def test_a_renderer_that_hangs_delays_no_other(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_plane, "CALL_TIMEOUT_S", 0.2)
    broken, good = NotingRenderer(), NotingRenderer()
    world = World(broken, good)
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled()
        setattr(broken, how, 1.0)
        began = Stopwatch()
        world.source.put(endpoints(1, 5, 6))
        await world.loop.settled(world.planes[1])
        assert began.s < 0.5
        assert good.calls[-1] == "flush"
        await eventually(lambda: world.error(0) != "")
        assert world.error(0).startswith("renderer r0: update_service ")
        await eventually(lambda: world.loop.runners[0].in_sync)
        assert broken.calls[-2:] == ["resync default/s1", "flush"]


async def test_one_that_is_far_behind_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbagent.render.shared_calls.MAX_BURSTS", 2)
    slow, good = NotingRenderer(), NotingRenderer()
    world = World(slow, good)
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled()
        slow.wait_s = 1.0
        for number in range(6, 11):
            world.source.put(endpoints(1, number))
            await world.loop.settled(world.planes[1])
            await eventually(lambda: slow.wait_s == 0)  # it is in the call
        await world.loop.settled()
        assert slow.calls == ["resync default/s1", "flush", "update default/s1", "flush", "resync default/s1", "flush"]
        assert slow.services == good.services


async def test_differences_are_found_and_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_plane, "VERIFY_INTERVAL_S", 0.05)
    renderer = NotingRenderer()
    world = World(renderer)
    plane = world.planes[0]
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled()
        renderer.differences = [Difference("stale", "no object has it", None, "10.0.0.1:80/TCP")]
        await eventually(lambda: renderer.calls == ["resync default/s1", "flush"] * 2)
        monkeypatch.setattr(renderer_plane, "VERIFY_INTERVAL_S", 60)
        await asyncio.sleep(0.1)
        renderer.differences = [Difference("missing", "it is not there", "default/s1", "10.0.0.1:80/TCP")]
        assert list(map(str, await plane.verify())) == ["default/s1 10.0.0.1:80/TCP: missing: it is not there"]
        assert plane.difference_count == 1
        assert list(await plane.verify()) == []
        assert plane.difference_count == 0
        renderer.differences = "nothing"  # type: ignore[assignment]
        with pytest.raises(RendererError, match="verify returned 'nothing', no list of Difference"):
            await plane.verify()


async def test_a_change_of_interfaces_is_a_call() -> None:
    renderer = NotingRenderer()
    world = World(renderer)
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled()
        world.shared.set_surroundings(Surroundings(Interfaces("eth0"), lambda _address: ""))
        await eventually(lambda: renderer.calls[2:] == ["frontend_ifs {eth0}", "flush"])


async def test_node_addresses_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    every, own = NotingRenderer(frozenset({"needs_nodes"})), NotingRenderer(frozenset({"weights", "mine"}))
    world = World(every, own)
    async with world.running():
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled()
        assert world.planes[1].features == {Feature.WEIGHTS}
        world.source.put(Node("you", Origin("n"), internal_ips=(bytes((10, 0, 0, 2)),)))
        await world.loop.settled()
        assert every.calls[2:] == ["node_ports {10.0.0.1, 10.0.0.2}", "flush"]
        assert own.calls[2:] == []
        world.source.put(replace(NODE, internal_ips=(bytes((10, 0, 0, 9)),)))
        await world.loop.settled()
        assert own.calls[2:] == ["node_ports {10.0.0.9}", "flush"]


async def test_a_renderer_that_cannot_be_made_is_tried_again_beside_others() -> None:
    good = NotingRenderer()
    world = World(good)
    faults: list[BaseException] = [ImportError("no such module"), ImportError("no such module")]

    def factory() -> Any:
        if faults:
            raise faults.pop()
        return lambda _settings: NotingRenderer()

    world.planes.append(world.plane("broken", factory, must_work=False))
    world.loop = SyncLoop(Resolver(Options("me")), [world.source], world.planes)
    world.source.changed = world.loop.inbox.feed(world.source)
    async with world.running():
        assert world.error(1) == "renderer broken: the factory raised ImportError: no such module"
        world.source.first_list(NODE, service(1), endpoints(1, 5))
        await world.loop.settled(world.planes[0])
        assert good.calls == ["resync default/s1", "flush"]
        await eventually(lambda: world.planes[1].ready.is_set() and world.error(1) == "")


async def test_a_renderer_that_must_work_ends_the_start() -> None:
    world = World()

    def refuse(_settings: Mapping[str, str]) -> Any:
        raise ValueError("colour is no setting")

    plane = world.plane("mine", lambda: lambda _settings: None)
    with pytest.raises(Unavailable, match="--renderer mine is not available: renderer mine is a NoneType") as found:
        await plane.open(lambda: None)
    assert found.value.exit_code == 77
    with pytest.raises(ConfigError, match="--renderer mine: colour is no setting"):
        await world.plane("mine", lambda: refuse, must_work=False).open(lambda: None)


async def test_two_that_translate_a_family() -> None:
    world = World()

    def refuse() -> None:
        raise ConfigError("both translate")

    words = frozenset({"translates"})
    plane = world.plane("mine", lambda: lambda _settings: NotingRenderer(words), must_work=False, on_translates=refuse)
    with pytest.raises(ConfigError, match="both translate"):
        await plane.open(lambda: None)


async def test_the_interfaces_of_clients_are_those_of_device() -> None:
    def link(index: int, name: str, mac: bytes = b"\x02\0\0\0\0\x01") -> tuple[int, Link]:
        return index, Link(index, name, mac, 1500, True)

    default = Route(bytes(4), 0, 2, bytes((10, 0, 0, 254)))
    to_pod = Route(bytes((10, 1, 1, 5)), 32, 3)
    own = RouteTable((Route(bytes((10, 0, 0, 1)), 32, 2),))
    links = dict([link(1, "lo", bytes(6)), link(2, "eth0"), link(3, "veth5"), link(4, "eth1")])
    none = RouteTable(())
    network = NodeNetwork(links, (), RouteTable((default, to_pod)), none, own, none, {})
    renderer = NotingRenderer()
    world = World(renderer)
    async with world.running():
        world.surroundings.take(network)
        local = replace(endpoints(1, 5, 6), endpoints=(replace(endpoints(1, 5).endpoints[0], node="me"),))
        world.source.first_list(NODE, service(1), local)
        await world.loop.settled()
        world.surroundings.take(replace(network, neighbours={}))
        assert world.shared.log(View()).snapshot().frontend_ifs == Interfaces("eth0"), "of the default route"
        assert world.shared.log(View()).snapshot().backend_ifs == Interfaces("veth5")
        await world.planes[0].reconfigure(Config(device=("eth*",)))
        await eventually(lambda: renderer.calls[2:] == ["frontend_ifs {eth0, eth1}", "flush"])
        moved = RouteTable((default, replace(to_pod, ifindex=4)))
        world.surroundings.take(replace(network, routes4=moved))
        await eventually(lambda: renderer.calls[4:] == ["backend_ifs {eth1}", "flush"])
