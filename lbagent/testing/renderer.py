"""The tests that every renderer passes.

A plug-in's package runs them with pytest:

    from lbagent.testing.renderer import RendererSuite, TortureSuite
    class TestMine(RendererSuite):
        def make_renderer(self): return mine.factory({"colour": "blue"})
    class TestMineTortured(TortureSuite):
        def make_renderer(self): return mine.factory({"colour": "blue"})

`make_renderer` is called many times: each renderer is one run of an agent over the same system, which keeps what the run before
left. Nothing but pytest is needed. This node has the addresses of NODE_IPS; the addresses of its Pods are in LOCAL_PODS. The
calls are those that an agent makes of random objects.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address, ip_network
from typing import TypeVar

from msgspec.structs import replace

from lbagent.model.address import L4Type, parse_ip
from lbagent.model.family import Family
from lbagent.model.service import CIDR, Algorithm
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    Node,
    ObjectSnapshot,
    Origin,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.render import (
    HOST_PORTS,
    NEEDS_NODES,
    Difference,
    Interfaces,
    ResyncEventData,
    ServiceRenderer,
)
from lbagent.render.renderer_names import capabilities_of
from lbagent.render.service_calls import Call, Flush, Resync, ServiceCalls, Surroundings, View
from lbagent.resolve import Options, resolve
from lbagent.sync.target_protocol import ObjectFacts

NODE, OTHER_NODE = "node-a", "node-b"
NODE_IPS = {Family.IPV4: "192.0.2.10", Family.IPV6: "2001:db8:2::10"}
OTHER_NODE_IPS = {Family.IPV4: "192.0.2.11", Family.IPV6: "2001:db8:2::11"}
LOCAL_PODS = {Family.IPV4: "10.244.0.0/24", Family.IPV6: "fd00:244::/64"}
REMOTE_PODS = {Family.IPV4: "10.244.1.0/24", Family.IPV6: "fd00:244:1::/64"}
CLUSTER_IPS = {Family.IPV4: "10.96.0.0/24", Family.IPV6: "fd00:96::/64"}
EXTERNAL_IPS = {Family.IPV4: "203.0.113.0/24", Family.IPV6: "2001:db8:203::/64"}
CALL_TIMEOUT_S = 10.0
_PROTOCOLS = (L4Type.TCP, L4Type.UDP)
_T = TypeVar("_T")


def _address(network: str, number: int) -> bytes:
    return parse_ip(str(ip_network(network)[number]))


class World:
    """Objects of a cluster, and the calls that follow their changes."""

    def __init__(self, capabilities: frozenset[str]) -> None:
        self.services: dict[str, Service] = {}
        self.slices: dict[str, EndpointSlice] = {}
        self.node_ips = tuple(map(parse_ip, NODE_IPS.values()))
        self.frontend_ifs = Interfaces("eth0")
        self.pod_device = "veth{}"
        self._calls = ServiceCalls(View(NEEDS_NODES in capabilities, HOST_PORTS in capabilities))

    # --- objects ---

    def put(
        self,
        number: int,
        local: Sequence[int] = (),
        remote: Sequence[int] = (),
        *,
        families: Sequence[Family] = tuple(Family),
        ports: Sequence[ServicePort] = (ServicePort("http", L4Type.TCP, 80),),
        external: bool = False,
        **more: object,
    ) -> None:
        """Make a Service `shop/sNUMBER` with a slice for each family; `local` and `remote` are numbers of Pods."""
        name = f"s{number}"
        service = Service(
            "shop", name, Origin("world", number), 1.0 + number, families=tuple(families), ports=tuple(ports)
        )
        service = replace(
            service,
            cluster_ips=tuple(_address(CLUSTER_IPS[family], number) for family in families),
            external_ips=tuple(_address(EXTERNAL_IPS[family], number) for family in families) if external else (),
            type="NodePort" if any(port.node_port for port in ports) else "ClusterIP",
            **more,
        )
        self.services[service.key] = service
        for family in Family:
            self.slices.pop(f"shop/{name}-{family}", None)
        for family in families:
            self.put_slice(number, family, local, remote, ports)

    def put_slice(
        self, number: int, family: Family, local: Sequence[int], remote: Sequence[int], ports: Sequence[ServicePort]
    ) -> None:
        """Make the slice of a family."""
        found = [Endpoint(_address(LOCAL_PODS[family], pod), node=NODE) for pod in local]
        found += [Endpoint(_address(REMOTE_PODS[family], pod), node=OTHER_NODE) for pod in remote]
        targets = tuple(SlicePort(port.name, port.protocol, 8000 + port.index) for port in ports)
        origin = Origin("world", 1000 + number)
        name = f"s{number}-{family}"
        made = EndpointSlice("shop", name, f"s{number}", family, origin, targets, tuple(found))
        self.slices[made.key] = made

    def drop(self, number: int, *, slices: bool = True, service: bool = True) -> None:
        """Remove a Service, or its slices, or both."""
        if service:
            self.services.pop(f"shop/s{number}", None)
        for family in Family if slices else ():
            self.slices.pop(f"shop/s{number}-{family}", None)

    def clear(self) -> None:
        """Remove all Services and slices."""
        self.services.clear()
        self.slices.clear()

    # --- calls ---

    def calls(self) -> list[Call]:
        """Return the calls since the last time, with a flush; none where nothing changed."""
        nodes = {
            NODE: Node(NODE, internal_ips=self.node_ips),
            OTHER_NODE: Node(OTHER_NODE, internal_ips=tuple(map(parse_ip, OTHER_NODE_IPS.values()))),
        }
        objects = ObjectSnapshot(services=self.services, slices=self.slices, nodes=nodes)
        state = resolve(objects, Options(NODE)).state
        addresses = frozenset(address for node in nodes.values() for address in node.internal_ips)
        with_endpoints = frozenset(each.service_key for each in self.slices.values())
        facts = ObjectFacts(self.node_ips, addresses, with_endpoints)
        found = self._calls.to(state, facts, Surroundings(self.frontend_ifs, self._device_of))
        return [*found, Flush()] if found else []

    def _device_of(self, address: str) -> str:
        networks = map(ip_network, LOCAL_PODS.values())
        return self.pod_device.format(address[-1]) if any(ip_address(address) in each for each in networks) else ""

    def resync(self) -> list[Call]:
        """Return the calls of a start."""
        return [Resync(self.snapshot()), Flush()]

    def snapshot(self) -> ResyncEventData:
        """Return everything that the calls so far make true."""
        return self._calls.snapshot()

    # --- chance ---

    def change(self, rng: random.Random) -> None:
        """Change something."""
        number = rng.randint(1, 6)
        kind = rng.randint(1, 12)
        if kind == 1:
            self.drop(number)
        elif kind == 2:
            self.drop(number, service=False)
        elif kind == 3:
            self.drop(number, slices=False)
        elif kind == 4:
            extra = (parse_ip("192.0.2.12"),) if rng.random() < 0.5 else ()
            self.node_ips = (*map(parse_ip, NODE_IPS.values()), *extra)
        elif kind == 5:
            self.frontend_ifs = Interfaces(*rng.sample(["eth0", "eth1", "bond0"], rng.randint(1, 2)))
        elif kind == 6:
            self.pod_device = rng.choice(["veth{}", "cali{}"])
        else:
            self._put_any(rng, number)

    def _put_any(self, rng: random.Random, number: int) -> None:
        ports = tuple(
            ServicePort(name, rng.choice(_PROTOCOLS), 80 + index, rng.choice((0, 30000 + 10 * number + index)), index)
            for index, name in enumerate(rng.sample(["http", "dns", ""], rng.randint(1, 3)))
        )
        family = rng.choice(tuple(Family))
        self.put(
            number,
            rng.sample(range(1, 9), rng.randint(0, 3)),
            rng.sample(range(1, 9), rng.randint(0, 2)),
            families=rng.choice((tuple(Family), (family,))),
            ports=ports,
            external=rng.random() < 0.4,
            external_local=rng.random() < 0.3,
            affinity_timeout_s=rng.choice((0, 0, 10800)),
            source_ranges=rng.choice(((), (), (CIDR.parse("198.51.100.0/24"), CIDR.parse("2001:db8:51::/48")))),
            algorithm=rng.choice((Algorithm.RANDOM, Algorithm.MAGLEV)),
        )


class _Suite:
    """What both suites need."""

    @abstractmethod
    def make_renderer(self) -> ServiceRenderer:
        """Return a new renderer over the system of the test."""

    def setup_method(self) -> None:
        """Begin with a system in which nothing is in force."""
        self._run(_nothing, keep=False)

    def teardown_method(self) -> None:
        """Leave nothing in force."""
        self._run(_nothing, keep=False)

    def _run(self, test: Callable[[ServiceRenderer], Awaitable[_T]], *, keep: bool = True) -> _T:
        """Return what a test of a new renderer returns; then close the renderer."""

        async def run() -> _T:
            renderer = self.make_renderer()
            try:
                return await test(renderer)
            finally:
                await _in_time(renderer.close(keep), "close")

        return asyncio.run(run())

    def _capabilities(self) -> frozenset[str]:
        renderer = self.make_renderer()
        found = capabilities_of("", renderer)
        asyncio.run(renderer.close(keep=True))
        return found


async def _nothing(_renderer: ServiceRenderer) -> None:
    pass


async def _in_time(call: Awaitable[_T], what: str) -> _T:
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call
    except TimeoutError:
        raise AssertionError(f"{what} did not return within {CALL_TIMEOUT_S:g} s") from None


async def _apply(renderer: ServiceRenderer, calls: Sequence[Call]) -> None:
    for call in calls:
        found: object = await _in_time(call.apply(renderer), call.name)
        assert found is None, f"{call.name} returned {found!r}"


async def _verified(renderer: ServiceRenderer, world: World, when: str) -> None:
    """Require that what is in force is what the world says."""
    found = await _in_time(renderer.verify(world.snapshot()), "verify")
    assert isinstance(found, list), f"verify returned {found!r}, no list"
    assert all(isinstance(each, Difference) for each in found), f"verify returned {found!r}"
    assert not found, f"{when}: {'; '.join(map(str, found))}\n{world.snapshot()}"


async def _dumped(renderer: ServiceRenderer) -> list[str]:
    found: object = await _in_time(renderer.dump(), "dump")
    assert isinstance(found, list), f"dump returned {found!r}, no list"
    assert all(isinstance(line, str) and "\n" not in line for line in found), f"dump returned {found!r}"
    return found


class RendererSuite(_Suite):
    """The contract of a renderer, call by call.

    `holds_state`: what is in force can be read from the system, so `dump` and `verify` see what another run left.
    """

    holds_state = True

    def test_capabilities_are_words(self) -> None:
        """`capabilities` returns the same set of words each time."""
        first, second = self._capabilities(), self._capabilities()
        assert first == second
        assert all(word.split() == [word] for word in first)

    def test_an_empty_resync(self) -> None:
        """Nothing is in force after a resync without Services."""
        world = World(self._capabilities())

        async def test(renderer: ServiceRenderer) -> None:
            await _apply(renderer, world.calls())
            await _verified(renderer, world, "after an empty resync")

        self._run(test)

    def test_each_call_does_what_it_says(self) -> None:
        """After each flush the system is as the calls say."""
        world = World(self._capabilities())

        async def test(renderer: ServiceRenderer) -> None:
            world.put(1, [1], [2])
            await _apply(renderer, world.calls())
            await _verified(renderer, world, "after the first resync")
            for when, change in _CHANGES:
                change(world)
                calls = world.calls()
                assert calls, when
                await _apply(renderer, calls)
                await _verified(renderer, world, when)

        self._run(test)

    def test_a_resync_twice_changes_nothing(self) -> None:
        """`resync` may come at any time."""
        world = World(self._capabilities())

        async def test(renderer: ServiceRenderer) -> None:
            world.put(1, [1, 2])
            world.put(2, [2], [3], external=True)
            await _apply(renderer, world.calls())
            before = await _dumped(renderer)
            await _apply(renderer, world.resync())
            assert await _dumped(renderer) == before
            await _apply(renderer, [Flush()])
            assert await _dumped(renderer) == before, "a flush without a call"

        self._run(test)

    def test_dump_is_stable(self) -> None:
        """`dump` returns the same lines for the same objects, in whatever order they came."""
        dumps = []
        for numbers in ((1, 2, 3), (3, 1, 2)):
            world = World(self._capabilities())

            async def test(
                renderer: ServiceRenderer, world: World = world, numbers: Sequence[int] = numbers
            ) -> list[str]:
                await _apply(renderer, world.calls())
                for number in numbers:
                    world.put(number, [number], [number + 1], external=number == 2)
                    await _apply(renderer, world.calls())
                return await _dumped(renderer)

            dumps.append(self._run(test, keep=False))
        assert dumps[0] == dumps[1]

    def test_verify_changes_nothing(self) -> None:
        """`verify` only compares; it finds what another snapshot has more."""
        world, other = World(self._capabilities()), World(self._capabilities())

        async def test(renderer: ServiceRenderer) -> None:
            for each in (world, other):
                each.put(1, [1])
            other.put(2, [2])
            await _apply(renderer, world.calls())
            other.calls()
            before = await _dumped(renderer)
            found = await _in_time(renderer.verify(other.snapshot()), "verify")
            assert bool(found) == self.holds_state, found
            assert await _dumped(renderer) == before
            await _verified(renderer, world, "after verify of another snapshot")

        self._run(test)

    def test_another_run_goes_on_with_what_is_in_force(self) -> None:
        """`close(keep=True)` keeps everything; the next run finds it, and its resync removes what is no longer wanted."""
        world = World(self._capabilities())

        async def first(renderer: ServiceRenderer) -> list[str]:
            world.put(1, [1])
            world.put(2, [2], external=True)
            await _apply(renderer, world.calls())
            return await _dumped(renderer)

        async def second(renderer: ServiceRenderer) -> None:
            if self.holds_state:
                assert await _dumped(renderer) == left
            await _verified(renderer, world, "before the resync of another run")
            world.drop(2)
            world.put(3, [3])
            world.calls()
            await _apply(renderer, world.resync())
            await _verified(renderer, world, "after the resync of another run")

        left = self._run(first)
        self._run(second)

    def test_close_without_keep_removes_everything(self) -> None:
        """`close(keep=False)` leaves the system as it was."""
        world = World(self._capabilities())
        before = self._run(_dumped)

        async def test(renderer: ServiceRenderer) -> None:
            world.put(1, [1], [2], external=True)
            await _apply(renderer, world.calls())

        self._run(test, keep=False)
        assert self._run(_dumped) == before

    def test_many_services_at_once(self) -> None:
        """A resync of 200 Services is in force within the time of a call."""
        world = World(self._capabilities())

        async def test(renderer: ServiceRenderer) -> None:
            for number in range(1, 201):
                world.put(number, [number % 100 + 1])
            await _apply(renderer, world.calls())
            await _verified(renderer, world, "after a resync of 200 Services")

        self._run(test)


def _port(name: str, protocol: L4Type, port: int, node_port: int = 0, index: int = 0) -> ServicePort:
    return ServicePort(name, protocol, port, node_port, index)


_DNS = (_port("dns", L4Type.UDP, 53), _port("dns-tcp", L4Type.TCP, 53, index=1))
_CHANGES: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("after add_service", lambda world: world.put(2, [3, 4], external=True)),
    ("after a backend more", lambda world: world.put(1, [1, 2], [2])),
    ("after another local backend", lambda world: world.put(1, [5], [2])),
    ("after no backend is left", lambda world: world.put(1)),
    ("after backends are back", lambda world: world.put(1, [1], [2])),
    ("after ports of two protocols", lambda world: world.put(3, [6], ports=_DNS)),
    ("after a NodePort", lambda world: world.put(1, [1], [2], ports=(_port("http", L4Type.TCP, 80, 30080),))),
    ("after another NodePort", lambda world: world.put(1, [1], [2], ports=(_port("http", L4Type.TCP, 80, 30081),))),
    (
        "after another address of the node",
        lambda world: setattr(world, "node_ips", (*world.node_ips, parse_ip("192.0.2.12"))),
    ),
    ("after a Service that shares a backend", lambda world: world.put(4, [1])),
    ("after delete_service; the other one has the backend still", lambda world: world.drop(4)),
    ("after one family went", lambda world: world.put(2, [3], families=(Family.IPV4,))),
    ("after the other family came instead", lambda world: world.put(2, [3], families=(Family.IPV6,))),
    ("after the slices went", lambda world: world.drop(2, service=False)),
    ("after other interfaces of clients", lambda world: setattr(world, "frontend_ifs", Interfaces("eth1"))),
    ("after other interfaces of Pods", lambda world: setattr(world, "pod_device", "cali{}")),
    ("after everything went", World.clear),
)


class TortureSuite(_Suite):
    """Random calls, errors between calls, a resync at any moment, SIGKILL: afterwards `verify` is empty.

    A failure names the seed; `first_seed` repeats it. `sequences` and `kills` are how many, `steps` the changes of each.
    """

    first_seed = 1
    sequences = 10
    steps = 12
    kills = 10

    def test_random_calls(self) -> None:
        """Random changes, some of them cut off: then a resync follows, as the agent makes it."""
        for seed in range(self.first_seed, self.first_seed + self.sequences):
            world, rng = World(self._capabilities()), random.Random(seed)

            async def test(
                renderer: ServiceRenderer, world: World = world, rng: random.Random = rng, seed: int = seed
            ) -> None:
                await _apply(renderer, world.calls())
                for step in range(self.steps):
                    world.change(rng)
                    what = await _step(renderer, world, rng)
                    await _verified(renderer, world, f"seed {seed}, step {step}: {what}")

            self._run(test)

    def test_killed(self) -> None:
        """A process that runs the renderer is killed in a burst or in its flush; the next one makes everything true."""
        capabilities = self._capabilities()
        for seed in range(self.first_seed, self.first_seed + self.kills):
            child = os.fork()
            if not child:
                self._be_killed(seed, capabilities)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), f"seed {seed}: the process ended with {status}, and was not killed"
            world = self._history(seed, capabilities)[0]

            async def test(renderer: ServiceRenderer, world: World = world, seed: int = seed) -> None:
                await _apply(renderer, world.resync())
                await _verified(renderer, world, f"seed {seed}: after SIGKILL and a resync")
                world.change(random.Random(seed))
                await _apply(renderer, world.calls())
                await _verified(renderer, world, f"seed {seed}: after SIGKILL, a resync and a change")

            self._run(test)

    def _history(self, seed: int, capabilities: frozenset[str]) -> tuple[World, list[list[Call]], random.Random]:
        """Return a world after some changes, and the calls of each."""
        world, rng = World(capabilities), random.Random(seed)
        bursts = [world.calls()]
        for _ in range(rng.randint(2, self.steps)):
            world.change(rng)
            if calls := world.calls():
                bursts.append(calls)
        return world, bursts, rng

    def _be_killed(self, seed: int, capabilities: frozenset[str]) -> None:
        """Make the calls, and be killed during the last burst. It does not return."""
        try:
            _, bursts, rng = self._history(seed, capabilities)
            last = bursts.pop()
            cut = rng.randint(0, len(last))

            async def run() -> None:
                renderer = self.make_renderer()
                for calls in bursts:
                    await _apply(renderer, calls)
                if cut == len(last):  # in the flush
                    threading.Thread(target=_kill_after, args=(rng.random() * 0.01,), daemon=True).start()
                await _apply(renderer, last[:cut])
                os.kill(os.getpid(), signal.SIGKILL)

            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - pytest must not run in the child
            os.write(2, f"seed {seed}: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)


def _kill_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


async def _step(renderer: ServiceRenderer, world: World, rng: random.Random) -> str:
    """Make the calls of a change; return how."""
    calls = world.calls()
    how = rng.random()
    if how < 0.5 or not calls:
        await _apply(renderer, calls)
        return "all calls"
    if how < 0.65:
        for _ in range(rng.randint(0, 3)):
            world.change(rng)
        world.calls()
        await _apply(renderer, world.resync())
        return "a resync without calls"
    cut = rng.randint(0, len(calls) - 1)
    await _apply(renderer, calls[:cut])
    if how < 0.8:
        word = f"an error after {cut} calls"
    else:
        word = f"{calls[cut].name} was cancelled"
        await _cancelled(calls[cut].apply(renderer), rng.random() * 0.002)
    await _apply(renderer, world.resync())
    return f"{word}, and a resync"


async def _cancelled(call: Awaitable[None], after_s: float) -> None:
    task = asyncio.ensure_future(call)
    await asyncio.wait({task}, timeout=after_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
