"""Rule and route of L7 proxies: made before the first frontend with one, repaired, removed after the last."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Collection

from msgspec.structs import replace

from lbagent.errors import KernelError
from lbagent.maps.frontend_codec import frontend_of, split_service_key
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import proxy_route_keeper
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.passing_rows import passing
from tests.sync.rig import SMALL, FixedPaths

NAME = ServiceName("default", "web")
FOUR, SIX = L3n4Addr.parse("10.96.0.1:80/TCP"), L3n4Addr.parse("[fd00:96::1]:80/TCP")
L7 = ServiceFlags(ServiceFlags.ROUTABLE | ServiceFlags.L7_LOAD_BALANCER)


def proxied(frontend: L3n4Addr, port: int = 15001) -> SVC:
    return SVC(frontend, name=NAME, flags=L7, l7_lb_proxy_port=port)


def plain(frontend: L3n4Addr) -> SVC:
    return SVC(frontend, name=NAME, flags=ServiceFlags(ServiceFlags.ROUTABLE))


class FakeRoute:
    """What the kernel would have."""

    def __init__(self, maps: MemoryMaps) -> None:
        self.maps = maps
        self.there: set[Family] = set()
        self.error = 0
        self.served_before: list[set[L3n4Addr]] = []  # the frontends in the maps at each `add`

    async def add(self, families: Collection[Family]) -> bool:
        rows = [*self.maps.items("lb4_service"), *self.maps.items("lb6_service")]
        self.served_before.append({frontend_of(split_service_key(key)[0]) for key, _ in rows})
        if self.error:
            raise KernelError("make", self.error, "the rule")
        lacks = set(families) - self.there
        self.there |= lacks
        return bool(lacks)

    async def remove(self, families: Collection[Family]) -> bool:
        gone = self.there & set(families)
        self.there -= gone
        return bool(gone)


class Agent:
    """A target, and its keeper."""

    def __init__(self, maps: MemoryMaps | None = None) -> None:
        self.maps = maps or MemoryMaps(SMALL)
        self.target = BpfTarget.open(self.maps, FixedPaths(), "me")
        self.keeper = self.target.proxies
        self.keeper.route = self.route = FakeRoute(self.maps)
        self.generation = 0

    async def serve(self, *services: SVC) -> None:
        self.generation += 1
        await self.target.reconcile(Desired(State(self.generation, services)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.01)


async def running(agent: Agent, what: Callable[[], Awaitable[None]]) -> None:
    """Do something while the keeper runs."""
    task = asyncio.create_task(agent.keeper.run(agent.target.ready))
    try:
        await what()
    finally:
        task.cancel()


async def test_they_are_made_before_the_frontend_and_removed_after_it() -> None:
    agent = Agent()

    async def changes() -> None:
        await agent.serve(plain(FOUR), plain(SIX))
        assert not agent.route.served_before
        await agent.serve(proxied(FOUR), plain(SIX))
        assert agent.route.there == {Family.IPV4}
        await agent.serve(proxied(FOUR), proxied(SIX))
        assert agent.route.there == set(Family)
        await agent.serve(plain(FOUR), proxied(SIX))
        await until(lambda: agent.route.there == {Family.IPV6})
        await agent.serve()
        await until(lambda: not agent.route.there)

    await running(agent, changes)
    assert FOUR in agent.route.served_before[0]


async def test_the_first_frontend_comes_after_the_rule() -> None:
    agent = Agent()
    await agent.serve(proxied(FOUR))
    assert agent.route.served_before == [set()]


async def test_what_another_program_removed_is_made_again() -> None:
    agent = Agent()

    async def changes() -> None:
        await agent.serve(proxied(FOUR))
        agent.route.there.clear()
        agent.keeper.network_changed()
        await until(lambda: agent.route.there == {Family.IPV4})

    await running(agent, changes)


async def test_what_fails_is_told_and_tried_again(monkeypatch) -> None:
    monkeypatch.setattr(proxy_route_keeper, "RETRY_DELAY_S", 0.01)
    agent = Agent()
    agent.route.error = errno.EPERM

    async def changes() -> None:
        await agent.serve(proxied(FOUR))
        assert "packets do not reach L7 proxies" in agent.keeper.problem
        agent.route.error = 0
        await until(lambda: not agent.keeper.problem and agent.route.there == {Family.IPV4})

    await running(agent, changes)


async def test_an_agent_that_starts_again_knows_them() -> None:
    """Also where nothing is to be written."""
    agent = Agent()
    await agent.serve(proxied(FOUR), plain(SIX))
    again = Agent(agent.maps)
    again.route.there = {Family.IPV4, Family.IPV6}

    async def changes() -> None:
        await again.serve(proxied(FOUR), plain(SIX))
        assert again.keeper.families == [Family.IPV4]
        await until(lambda: again.route.there == {Family.IPV4})

    await running(again, changes)


async def test_rows_that_pass_need_none() -> None:
    """While another data plane has the new flows."""
    agent = Agent()

    async def changes() -> None:
        await agent.serve(proxied(FOUR))
        await agent.serve(passing(proxied(FOUR)))
        await until(lambda: not agent.route.there)

    await running(agent, changes)
    assert passing(proxied(FOUR)) == replace(proxied(FOUR), l7_lb_proxy_port=0)
