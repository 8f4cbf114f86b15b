"""lb_echo: which addresses answer pings, and when that changes."""

from __future__ import annotations

import pytest

from lbagent.errors import KernelError
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.flags import ServiceFlags
from lbagent.model.kinds import SVCType
from lbagent.model.service import CIDR, SVC
from lbagent.model.state import State
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.sync.rig import SMALL, FixedPaths
from tests.targets.bpf.plans import QUARANTINED, backend

ONE, TWO = backend("10.244.1.1:80/TCP"), backend("10.244.1.2:80/TCP")
V4 = bytes(10) + b"\xff\xff" + bytes((203, 0, 113, 7))
V6 = bytes.fromhex("20010db8011300000000000000000010")
PLAIN = 0x40  # routable


def vip(
    text: str,
    *selectable,
    kind: SVCType = SVCType.LOAD_BALANCER,
    flags: int = PLAIN,
    scope: Scope = Scope.EXTERNAL,
    **more,
) -> SVC:
    parsed = L3n4Addr.parse(text)
    return SVC(
        L3n4Addr(parsed.address, parsed.port, parsed.protocol, scope),
        type=kind, selectable=selectable, flags=ServiceFlags(flags), **more,
    )  # fmt: skip


class Agent:
    """A target without its loop."""

    def __init__(self, maps: MemoryMaps | None = None) -> None:
        self.maps = maps or MemoryMaps(SMALL)
        self.target = BpfTarget.open(self.maps, FixedPaths(), "me")
        self.generation = 0

    async def serve(self, *services: SVC) -> dict[bytes, tuple[tuple[bool, int, int], ...]]:
        """Reconcile; return for each address and scope: answers, id, flags."""
        self.generation += 1
        await self.target.reconcile(Desired(State(self.generation, services)))
        return self.read()

    def read(self) -> dict[bytes, tuple[tuple[bool, int, int], ...]]:
        return {key: tuple(map(_half, (value[:12], value[12:]))) for key, value in self.maps.items("lb_echo")}


def _half(value: bytes) -> tuple[bool, int, int]:
    assert value[4:6] in (b"\0\0", b"\1\0")
    return value[4] == 1, int.from_bytes(value[6:8], "big"), value[8] | value[9] << 8


async def answers(agent: Agent, *services: SVC) -> dict[bytes, bool]:
    """Return which addresses answer clients of outside."""
    return {key: outside[0] for key, (outside, _) in (await agent.serve(*services)).items()}


@pytest.mark.parametrize("kind", [SVCType.CLUSTER_IP, SVCType.EXTERNAL_IPS, SVCType.LOAD_BALANCER])
async def test_an_address_answers_while_one_of_its_frontends_takes_new_flows(kind: SVCType) -> None:
    agent, other = Agent(), vip("203.0.113.7:443/TCP", kind=kind)
    assert await answers(agent, vip("203.0.113.7:80/TCP", ONE, kind=kind), other) == {V4: True}
    assert await answers(agent, vip("203.0.113.7:80/TCP", kind=kind), other) == {V4: False}
    assert await answers(agent, vip("203.0.113.7:80/TCP", kind=kind), vip("203.0.113.7:443/TCP", TWO, kind=kind)) == {
        V4: True
    }
    assert await answers(agent) == {}


async def test_both_families() -> None:
    found = await answers(Agent(), vip("203.0.113.7:80/TCP", ONE), vip("[2001:db8:113::10]:80/TCP"))
    assert found == {V4: True, V6: False}


async def test_backends_that_are_there_and_take_no_flow_do_not_answer() -> None:
    out = backend("10.244.1.1:80/TCP", QUARANTINED)
    assert await answers(Agent(), vip("203.0.113.7:80/TCP", unselectable=(out,))) == {V4: False}


@pytest.mark.parametrize("kind", [SVCType.NODE_PORT, SVCType.HOST_PORT])
async def test_an_address_of_the_node_is_the_stacks(kind: SVCType) -> None:
    """Also where a Service has it as external IP."""
    agent, external = Agent(), vip("203.0.113.7:80/TCP", ONE)
    assert await answers(agent, external) == {V4: True}
    assert await answers(agent, external, vip("203.0.113.7:30080/TCP", ONE, kind=kind)) == {}
    assert await answers(agent, external) == {V4: True}


async def test_an_address_to_which_the_node_translates_is_the_stacks() -> None:
    agent = Agent()
    own: list[bytes] = []
    agent.target._paths.snat_addresses = lambda: own
    assert await answers(agent, vip("203.0.113.7:80/TCP", ONE)) == {V4: True}
    own.append(bytes((203, 0, 113, 7)))
    assert await answers(agent, vip("203.0.113.7:80/TCP", ONE)) == {}


async def test_loopback_addresses_have_none() -> None:
    assert await answers(Agent(), vip("127.0.0.1:80/TCP", ONE), vip("[::1]:80/TCP", ONE)) == {}


async def test_each_scope_has_its_own_word() -> None:
    """A Local policy without a backend here: pods are served, others are not."""
    two = PLAIN | 0x2000
    found = await Agent().serve(
        vip("203.0.113.7:80/TCP", flags=two), vip("203.0.113.7:80/TCP", ONE, flags=two, scope=Scope.INTERNAL)
    )
    outside, inside = found[V4]
    assert (outside[0], inside[0]) == (False, True)
    assert outside[1] != inside[1]


async def test_a_frontend_without_source_ranges_is_preferred() -> None:
    agent = Agent()
    ranges = {"source_ranges": (CIDR.parse("198.51.100.0/24"),), "check_source_range": True, "flags": PLAIN | 0x80}
    closed = vip("203.0.113.7:80/TCP", ONE, **ranges)
    assert (await agent.serve(closed))[V4][0][2] == PLAIN | 0x80
    assert (await agent.serve(closed, vip("203.0.113.7:443/TCP", ONE)))[V4][0][2] == PLAIN
    assert (await agent.serve(closed, vip("203.0.113.7:443/TCP")))[V4][0][2] == PLAIN | 0x80


async def test_the_next_agent_corrects_what_it_finds() -> None:
    agent = Agent()
    await agent.serve(vip("203.0.113.7:80/TCP", ONE))
    agent.maps.put_many("lb_echo", [(V6, bytes(24)), (V4, bytes(24))])
    assert await answers(Agent(agent.maps), vip("203.0.113.7:80/TCP", ONE)) == {V4: True}


async def test_a_comparison_finds_and_mends_what_another_process_changed() -> None:
    agent = Agent()
    service = vip("203.0.113.7:80/TCP", ONE)
    await agent.serve(service)
    assert await agent.target.differences() == []
    agent.maps.put_many("lb_echo", [(V4, bytes(24)), (V6, bytes(24))])
    (six, four) = sorted(each.detail for each in await agent.target.differences())
    assert "203.0.113.7" in six + four
    assert "2001:db8:113::10" in six + four
    await agent.target.resync()
    assert agent.target.wake.is_set()
    assert await answers(agent, service) == {V4: True}


async def test_a_write_that_fails_is_tried_again() -> None:
    agent = Agent()
    service = vip("203.0.113.7:80/TCP", ONE)
    put, agent.maps.put_many = agent.maps.put_many, _failing(agent.maps)  # type: ignore[method-assign]
    assert await agent.serve(service) == {}
    assert "lb_echo" in agent.target.error
    agent.maps.put_many = put  # type: ignore[method-assign]
    assert await answers(agent, service) == {V4: True}
    assert agent.target.error == ""


def _failing(maps: MemoryMaps):
    real = maps.put_many

    def put_many(name, items):
        if name == "lb_echo" and items:
            raise KernelError("insert", 12, name)
        real(name, items)

    return put_many
