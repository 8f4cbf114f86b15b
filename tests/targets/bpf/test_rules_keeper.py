"""lb_rules, lb_rules_of and lb_backend_flows: who has which record, and what a sweep corrects."""

from __future__ import annotations

import struct

import pytest
from msgspec.structs import replace

from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags
from lbagent.model.flow_rules import FlowRules
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import rules_keeper
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.sync.rig import SMALL, FixedPaths
from tests.targets.bpf.plans import backend

ONE, TWO, THREE = (backend(f"10.244.1.{number}:80/TCP") for number in (1, 2, 3))
WEB, SHOP = ServiceName("default", "web"), ServiceName("default", "shop")
RECORD, FLOWS = 64, 16  # bytes of lb_rules, of lb_backend_flows
SWEPT_BACKENDS = 4 * 8192


def svc(text: str, *selectable, name: ServiceName = WEB, rules: FlowRules | None = None, **more) -> SVC:
    return SVC(L3n4Addr.parse(text), selectable=selectable, name=name, flow_rules=rules, **more)


class Agent:
    """A target without its loop; `tick` is its clock."""

    def __init__(self, maps: MemoryMaps | None = None) -> None:
        self.maps = maps or MemoryMaps(SMALL)
        self.target = BpfTarget.open(self.maps, FixedPaths(), "me")
        self.tick = 100
        self.rules = self.target.flow_rules
        self.rules._tick = lambda: self.tick
        self.generation = 0

    async def serve(self, *services: SVC) -> None:
        self.generation += 1
        await self.target.reconcile(Desired(State(self.generation, services)))

    def number(self, frontend: str) -> int:
        """Return the record of a frontend, 0 for none."""
        ident = next(row.id for row in self.target.shadow.services if row.frontend == L3n4Addr.parse(frontend))
        with self.maps.window("lb_rules_of", ident * 2 // 8 * 8, 8) as view:
            return struct.unpack("=4H", view)[ident % 4]

    def ident(self, address: str) -> int:
        return next(
            each.id
            for row in self.target.shadow.services
            for each in row.selectable
            if each.address == L3n4Addr.parse(address)
        )

    def record(self, number: int) -> tuple[int, ...]:
        """Return max_flows, max_per_backend, rate_interval, slow_start, flags, base, opened, closed."""
        with self.maps.window("lb_rules", number * RECORD, 48) as view:
            return struct.unpack("=IIQIIqQQ", view)

    def flows(self, ident: int) -> tuple[int, ...]:
        """Return what the programs have counted, what is added, weight, since."""
        with self.maps.window("lb_backend_flows", ident * FLOWS, FLOWS) as view:
            return struct.unpack("=qiHH", view)

    def count(self, number: int, opened: int, closed: int, backends: dict[int, int]) -> None:
        """Count as the programs do."""
        with self.maps.window("lb_rules", number * RECORD + 32, 16) as view:
            before = struct.unpack("=QQ", view)
            view[:] = struct.pack("=QQ", before[0] + opened, before[1] + closed)
        for ident, more in backends.items():
            with self.maps.window("lb_backend_flows", ident * FLOWS, 8) as view:
                view[:] = struct.pack("=q", struct.unpack("=q", view)[0] + more)

    def sweep(self, number: int, found: int, backends: dict[int, int], meanwhile=lambda: None) -> None:
        assert self.rules.begin_sweep()
        with self.maps.window("lb_swept", number * 4, 4) as view:
            view[:] = struct.pack("=I", found)
        for ident, live in backends.items():
            with self.maps.window("lb_swept", SWEPT_BACKENDS + ident * 4, 4) as view:
                view[:] = struct.pack("=I", live)
        meanwhile()
        self.rules.end_sweep()


async def test_frontends_of_a_service_share_a_record() -> None:
    agent = Agent()
    rules = FlowRules(max_flows=7, max_flows_per_backend=3, new_flow_rate=4, reject=True)
    await agent.serve(
        svc("10.96.0.1:80/TCP", ONE, rules=rules),
        svc("10.96.0.1:443/TCP", TWO, rules=rules),
        svc("10.96.0.2:80/TCP", ONE, name=SHOP, rules=FlowRules(max_flows=1)),
        svc("10.96.0.3:80/TCP", ONE, name=ServiceName("default", "plain")),
    )
    web, shop = agent.number("10.96.0.1:80/TCP"), agent.number("10.96.0.2:80/TCP")
    assert web == agent.number("10.96.0.1:443/TCP")
    assert len({0, web, shop}) == 3
    assert agent.number("10.96.0.3:80/TCP") == 0
    assert agent.record(web)[:5] == (7, 3, 250_000_000, 0, 1)
    assert agent.record(shop)[:5] == (1, 0, 0, 0, 0)
    assert agent.record(0) == (0,) * 8


async def test_a_changed_limit_keeps_the_counts_and_one_that_is_removed_leaves_no_record() -> None:
    agent = Agent()
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, rules=FlowRules(max_flows=7)))
    number = agent.number("10.96.0.1:80/TCP")
    agent.sweep(number, 0, {})
    agent.count(number, 5, 2, {})
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, rules=FlowRules(max_flows=9)))
    assert agent.number("10.96.0.1:80/TCP") == number
    assert agent.record(number)[0] == 9
    assert agent.rules.live() == {WEB: 3}
    await agent.serve(svc("10.96.0.1:80/TCP", ONE))
    assert agent.number("10.96.0.1:80/TCP") == 0
    assert not agent.rules.begin_sweep()


async def test_a_restart_keeps_record_and_counts() -> None:
    agent = Agent()
    row = svc("10.96.0.1:80/TCP", ONE, rules=FlowRules(max_flows=7))
    await agent.serve(row)
    number = agent.number("10.96.0.1:80/TCP")
    agent.sweep(number, 0, {})
    agent.count(number, 6, 2, {})
    again = Agent(agent.maps)
    await again.serve(row)
    assert again.number("10.96.0.1:80/TCP") == number
    assert again.rules.live() == {WEB: 4}
    assert not again.rules.fresh


async def test_the_first_sweep_counts_the_flows_from_before_the_rules() -> None:
    """Those that open meanwhile may be in its count or not: rather too many than too few."""
    agent = Agent()
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, TWO, rules=FlowRules(max_flows_per_backend=50)))
    number, one, two = (
        agent.number("10.96.0.1:80/TCP"),
        agent.ident("10.244.1.1:80/TCP"),
        agent.ident("10.244.1.2:80/TCP"),
    )
    assert number in agent.rules.fresh
    agent.sweep(number, 30, {one: 20, two: 10}, lambda: agent.count(number, 2, 0, {one: 2}))
    assert agent.rules.live() == {WEB: 32}
    assert [sum(agent.flows(ident)[:2]) for ident in (one, two)] == [22, 10]
    assert not agent.rules.fresh


async def test_what_the_first_sweep_counted_twice_is_corrected_by_a_second_one() -> None:
    """Three flows open behind the sweep's beginning, and it has seen two of them."""
    agent = Agent()
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, rules=FlowRules(max_flows_per_backend=50)))
    number, one = agent.number("10.96.0.1:80/TCP"), agent.ident("10.244.1.1:80/TCP")
    agent.sweep(number, 12, {one: 12}, lambda: agent.count(number, 3, 0, {one: 3}))
    assert agent.rules.wants_sweep
    assert sum(agent.flows(one)[:2]) == 15
    agent.sweep(number, 13, {one: 13})
    assert sum(agent.flows(one)[:2]) == 13
    assert not agent.rules.wants_sweep


@pytest.mark.parametrize(
    ("found", "opened", "closed", "right"),
    [
        (10, 0, 0, 10),  # nothing happened: the sweep is right
        (10, 3, 0, 10),  # 7 were counted, and 3 that opened: all of them may be among the 10
        (4, 3, 0, 7),  # at most three of those that opened were not seen
        (20, 0, 2, 18),  # at least 18 of 20 are left
    ],
)
async def test_a_later_sweep_corrects_only_what_it_can_tell(found: int, opened: int, closed: int, right: int) -> None:
    agent = Agent()
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, rules=FlowRules(max_flows=50)))
    number = agent.number("10.96.0.1:80/TCP")
    agent.sweep(number, 7, {})
    agent.sweep(number, found, {}, lambda: agent.count(number, opened, closed, {}))
    assert agent.rules.live() == {WEB: right}


async def test_a_backend_is_corrected_when_two_sweeps_agree() -> None:
    agent = Agent()
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, rules=FlowRules(max_flows_per_backend=50)))
    number, one = agent.number("10.96.0.1:80/TCP"), agent.ident("10.244.1.1:80/TCP")
    agent.sweep(number, 9, {one: 9})
    agent.sweep(number, 9, {one: 4})
    assert sum(agent.flows(one)[:2]) == 9
    agent.sweep(number, 9, {one: 9})
    agent.sweep(number, 9, {one: 4})
    agent.sweep(number, 9, {one: 6})
    assert sum(agent.flows(one)[:2]) == 6, "the smaller of both differences"


async def test_slow_start_is_of_a_backend_that_comes_to_others() -> None:
    agent = Agent()
    rules = FlowRules(slow_start_s=60)
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, TWO, rules=rules))
    one, two = agent.ident("10.244.1.1:80/TCP"), agent.ident("10.244.1.2:80/TCP")
    assert [agent.flows(ident)[3] for ident in (one, two)] == [0, 0], "all are new"
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, TWO, THREE, rules=rules))
    three = agent.ident("10.244.1.3:80/TCP")
    assert [agent.flows(ident)[3] for ident in (one, two, three)] == [0, 0, 100]
    number = agent.number("10.96.0.1:80/TCP")
    assert agent.record(number)[3] in range(45, 76)
    agent.tick += 7000
    agent.sweep(number, 0, {})
    assert agent.flows(three)[3] == 100
    agent.tick += 300
    agent.sweep(number, 0, {})
    assert agent.flows(three)[3] == 0, "long over"


async def test_a_service_beyond_the_records_is_served_without_rules(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rules_keeper, "RULES", 3)
    agent = Agent()
    names = [ServiceName("default", f"s{number}") for number in range(3)]
    rows = [
        svc(f"10.96.0.{at}:80/TCP", ONE, name=name, rules=FlowRules(max_flows=7)) for at, name in enumerate(names, 1)
    ]
    await agent.serve(*rows)
    numbers = [agent.number(f"10.96.0.{at}:80/TCP") for at in (1, 2, 3)]
    assert sorted(numbers) == [0, 1, 2]
    assert agent.record(0) == (0,) * 8
    left_out = names[numbers.index(0)]
    assert [record.service for record in caplog.records if "rules" in record.message] == [str(left_out)]
    rest = [row for row, number in zip(rows, numbers, strict=True) if number != 1]
    await agent.serve(*rest)
    changed = [replace(row, flow_rules=FlowRules(max_flows=8)) for row in rest]
    await agent.serve(*changed)
    assert sorted(agent.number(row.frontend.with_protocol()) for row in changed) == [1, 2], "a record that became free"


async def test_the_count_of_a_proxy_s_connections_outlives_a_change_of_its_service() -> None:
    """Its tick is where others have slow_start."""
    agent = Agent()
    rules = FlowRules(max_flows=7, slow_start_s=60)
    flags = ServiceFlags(ServiceFlags.ROUTABLE | ServiceFlags.L7_LOAD_BALANCER)
    proxied = {"rules": rules, "flags": flags, "l7_lb_proxy_port": 15001}
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, **proxied))
    number = agent.number("10.96.0.1:80/TCP")
    assert agent.rules.proxied() == {number: [L3n4Addr.parse("10.96.0.1:80/TCP")]}
    with agent.maps.window("lb_rules", number * RECORD + 16, 4) as view:
        view[:] = struct.pack("=I", 777)
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, TWO, **proxied))
    assert agent.record(number)[3] == 777
    await agent.serve(svc("10.96.0.1:80/TCP", ONE, rules=rules))
    assert agent.record(number)[3] in range(45, 76)
    assert agent.rules.proxied() == {}
