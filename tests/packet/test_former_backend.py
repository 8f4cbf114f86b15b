"""A backend leaves a frontend while another one keeps it: datagrams of the first frontend's flows go to a backend of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from lbagent.bpf.run.former_backends import MAP, FormerBackends
from lbagent.bpf.run.sweep import Sweeper
from lbagent.maps.flow_reader import udp_pairs
from lbagent.maps.layout import FORMER_BACKENDS
from lbagent.maps.reasons import Reason
from lbagent.model.family import Family as AddressFamily
from tests.packet import table
from tests.packet.caller import Caller, sweep_former
from tests.packet.craft import FAMILIES, Family
from tests.packet.harness import SMALL, open_world
from tests.packet.race_points import noted
from tests.packet.test_migrate import GROWN, changes
from tests.packet.test_race_points import RacingWorld, loaded_racing_world, racing_world
from tests.packet.world import TCP, UDP, XDP, World

__all__ = ["loaded_racing_world", "racing_world"]  # fixtures
BOTH_WAYS = pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
VIP, VIP2 = 53, 54  # ports of the two frontends


class Two:
    """Frontend A with one backend, which frontend B has too; then A gets another backend in its place."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int, *, local: bool) -> None:
        self.world, self.fam = world, fam
        address = fam.local if local else fam.remote
        self.old, self.new = (world.backend(fam, address(n), 8080, proto, local=local) for n in (1, 2))
        a = world.service(fam, fam.vip, VIP, proto, [self.old])
        b = world.service(fam, fam.vip, VIP2, proto, [self.old])
        self.of_a, self.of_b = Caller(world, a, hook=hook, port=40000), Caller(world, b, hook=hook, port=40001)
        self.former = FormerBackends(world.maps)
        for each in (self.of_a, self.of_b):
            each.establish()

    def move(self) -> None:
        """Write the entries of a plan, and record its former backends."""
        a = self.of_a.service
        self.world.slot(a, 1, target=self.new.id)
        self.of_a.service = dataclasses.replace(a, backends=(self.old, self.new))
        self.former.add([(a.id, self.old.id)])

    def sweep(self) -> None:
        sweep_former(self.world, self.fam, self.former)

    def is_moved(self) -> bool:
        """Send a datagram; return whether it went to the new backend as a flow that has chosen again."""
        out = self.of_a.send("")
        return self.of_a.went is self.new and out.counted[Reason.FWD_RESELECTED] == 1


@BOTH_WAYS
def test_the_next_datagram_chooses_again(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Once; then the conversation continues with the new backend. The old port is free, and flows of the other frontend stay."""
    two = Two(world, fam, hook, UDP, local=local)
    two.move()
    assert two.of_a.stays("")  # until the sweep
    two.sweep()
    assert two.is_moved()
    assert two.of_a.is_answered("")
    assert two.of_a.stays("")
    assert two.of_b.stays("")
    assert two.of_b.is_answered("")
    assert table.held_slots(world, fam) == (0 if local else 2)


@BOTH_WAYS
def test_a_connection_stays(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """TCP ends with its backend, and this one lives."""
    two = Two(world, fam, hook, TCP, local=local)
    two.move()
    two.sweep()
    for each in (two.of_a, two.of_b):
        assert each.stays("A")
        assert each.is_answered("A")


@BOTH_WAYS
@pytest.mark.parametrize("opens", [False, True])
def test_connections_end_where_no_service_has_the_backend(
    world: World, fam: Family, hook: str, *, local: bool, opens: bool
) -> None:
    """One that opens, too. Those of the frontend that keeps it stay."""
    two = Two(world, fam, hook, TCP, local=local)
    talk = two.of_a
    if opens:
        talk = Caller(world, two.of_a.service, hook=hook, port=40009)
        talk.send("S")
    two.former.add([(two.of_a.service.id, two.old.id)], of_all=True)
    two.sweep()
    two.sweep()
    assert not two.former.waiting
    assert not two.former.of_all
    assert talk.send("A").counted[Reason.REJECT_BACKEND_GONE] == 1
    assert two.of_b.stays("A")
    assert two.of_b.is_answered("A")


@BOTH_WAYS
def test_what_the_old_backend_still_answers_reaches_the_client(
    world: World, fam: Family, hook: str, *, local: bool
) -> None:
    """The answer to a datagram from before the move is no loss."""
    two = Two(world, fam, hook, UDP, local=local)
    two.move()
    two.sweep()
    assert two.of_a.is_answered("")


def test_a_flow_without_an_answer_chooses_again_too(world: World, fam: Family, hook: str) -> None:
    two = Two(world, fam, hook, UDP, local=False)
    silent = Caller(world, two.of_a.service, hook=hook, port=40007)
    silent.send("")
    two.move()
    two.sweep()
    silent.service = two.of_a.service
    silent.send("")
    assert silent.went is two.new


def test_it_is_looked_for_until_a_sweep_finds_none(world: World, fam: Family, hook: str) -> None:
    """Then the map is empty again, and a flow that comes to that backend later is left alone."""
    two = Two(world, fam, hook, UDP, local=False)
    two.move()
    two.sweep()
    assert two.former.waiting
    assert two.former.arrived.is_set()
    two.sweep()
    assert not two.former.waiting
    assert not two.former.arrived.is_set()
    assert world.maps.items(MAP) == []


def test_a_backend_that_comes_back_before_the_sweep_keeps_its_flows(world: World, fam: Family, hook: str) -> None:
    two = Two(world, fam, hook, UDP, local=False)
    two.move()
    two.former.remove({(two.of_a.service.id, two.old.id)})
    two.sweep()
    assert two.of_a.stays("")


def test_a_backend_that_comes_back_in_the_middle_of_a_sweep_keeps_its_flows(
    world: World, fam: Family, hook: str
) -> None:
    two = Two(world, fam, hook, UDP, local=False)
    two.move()
    assert two.former.begin_sweep()
    two.former.remove({(two.of_a.service.id, two.old.id)})
    assert world.maps.items(MAP) == []
    two.former.end_sweep()
    assert not two.former.waiting


def test_more_than_the_map_holds_waits_for_the_next_sweep(world: World, fam: Family, hook: str) -> None:
    """Pairs of another service fill the map of the first sweep; nothing is lost, and no other flow is touched."""
    two = Two(world, fam, hook, UDP, local=False)
    two.former.add((0, ident) for ident in range(1, FORMER_BACKENDS + 1))  # sorted before those of any service
    two.move()
    two.sweep()
    assert two.of_a.stays("")
    assert two.former.arrived.is_set()
    two.sweep()
    assert two.is_moved()
    assert two.of_b.stays("")
    two.sweep()
    assert not two.former.waiting


def test_what_a_dead_agent_left_in_the_map_counts_for_nothing(world: World, fam: Family, hook: str) -> None:
    two = Two(world, fam, hook, UDP, local=False)
    two.move()
    assert two.former.begin_sweep()
    sweep_former(world, fam, FormerBackends(world.maps))  # of the next agent, which has no record yet
    assert world.maps.items(MAP) == []
    assert two.of_a.stays("")


@BOTH_WAYS
def test_the_pairs_of_live_flows_are_found(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Of UDP alone, those of both frontends."""
    two = Two(world, fam, hook, UDP, local=local)
    tcp = world.backend(fam, fam.remote(9), 80, TCP)
    Caller(world, world.service(fam, fam.vip2, 80, TCP, [tcp]), hook=hook).establish()
    pairs = set().union(*udp_pairs(world.maps, AddressFamily.IPV4 if fam.version == 4 else AddressFamily.IPV6))
    assert pairs == {(each.service.id, two.old.id) for each in (two.of_a, two.of_b)}


# --- the spill map ---


@pytest.fixture(scope="module")
def crowded_world() -> Iterator[World]:
    """Load programs with a flow table of one bucket."""
    with open_world(sizes=dataclasses.replace(SMALL, flow4=4, flow6=4)) as world:
        yield world


@BOTH_WAYS
def test_flows_in_the_spill_map_choose_again(crowded_world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Those of the other frontend there stay."""
    world = crowded_world
    world.reset()
    two = Two(world, fam, hook, UDP, local=local)
    crowd = [Caller(world, each.service, hook=hook, port=41000 + n) for n in range(8) for each in (two.of_a, two.of_b)]
    for each in crowd:
        each.establish()
    rest = [each for each in crowd if each.send("").counted[Reason.FWD_SPILL]]
    of_a = [each for each in rest if each.service is two.of_a.service]
    of_b = [each for each in rest if each.service is two.of_b.service]
    assert len(of_a) > 2
    assert len(of_b) > 2
    family = AddressFamily.IPV4 if fam.version == 4 else AddressFamily.IPV6
    assert (of_a[0].service.id, two.old.id) in set().union(*list(udp_pairs(world.maps, family))[-1:])
    two.move()
    for _ in range(2):  # a second one takes nothing back
        two.sweep()
    assert not two.former.waiting
    for each in of_a:
        each.service = two.of_a.service
        each.send("")
        assert each.went is two.new
        assert each.is_answered("")
        assert each.stays("")
    assert all(each.stays("") for each in of_b)


# --- another CPU ---


def test_a_flow_that_changes_in_the_very_moment_is_taken_by_the_next_sweep(
    racing_world: RacingWorld, fam: Family, hook: str
) -> None:
    """Its first reply arrives between read and swap: this sweep leaves the flow, and another one follows."""
    world, points = racing_world.world, racing_world.points
    backends = [world.backend(fam, fam.local(n), 8080, UDP, local=True) for n in (1, 2)]
    a = world.service(fam, fam.vip, VIP, UDP, backends[:1])
    talk, former = Caller(world, a, hook=hook), FormerBackends(world.maps)
    talk.send("")
    world.slot(a, 1, target=backends[1].id)
    former.add([(a.id, backends[0].id)])
    points.let_in("ENTRY_END", noted(world, fam.version, lambda: talk.answer("")))
    sweep_former(world, fam, former)
    assert points.passed("ENTRY_END")
    assert table.only(world, fam).state == table.EST
    assert talk.stays("")
    assert former.arrived.is_set()
    sweep_former(world, fam, former)
    talk.service = dataclasses.replace(a, backends=tuple(backends))
    talk.send("")
    assert talk.went is backends[1]
    sweep_former(world, fam, former)
    assert not former.waiting


# --- two tables ---


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
async def test_flows_in_both_tables_of_a_change_of_sizes_choose_again(*, local: bool) -> None:
    """Half of the flows are in the new table, half in the one that is being left; one turn of the real sweeper finds all."""
    for change in changes(SMALL, GROWN):
        for fam in FAMILIES.values():
            change.reset()
            world = change.world
            two = Two(world, fam, XDP, UDP, local=local)
            crowd = [Caller(world, two.of_a.service, port=41000 + n) for n in range(40)]
            for each in crowd:
                each.establish()
            change.begin()
            change.some(0.5)
            moved = len(table.flows(world, fam))
            assert 0 < moved < 42
            two.move()
            force = [(change.before, change.old), (change.both.programs, change.new)]
            sweeper = Sweeper(world.maps, lambda force=force: force, 3600.0, former=two.former)  # type: ignore[misc]
            await sweeper.sweep()
            assert two.former.arrived.is_set()
            for each in crowd:
                each.service = two.of_a.service
                each.send("")
                assert each.went is two.new
            assert two.of_b.stays("")
            await sweeper.sweep()
            assert not two.former.waiting
            for each in crowd:
                assert each.stays("")
