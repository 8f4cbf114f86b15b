"""Two full buckets of four entries, time stands still: a new flow looks for its entry in both of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld, open_timed_world, ticks_of
from tests.packet.craft import Family
from tests.packet.harness import SMALL
from tests.packet.test_clock import caller
from tests.packet.world import XDP

ENTRIES = 8
NEWCOMERS = 64
AT_LEAST = 41  # of 64: chance gives three in four of them the bucket as their first or second one, 48


@pytest.fixture(scope="module")
def loaded_two_buckets_world() -> Iterator[TimedWorld]:
    """Load programs with two buckets."""
    sizes = dataclasses.replace(SMALL, flow4=ENTRIES, flow6=ENTRIES)
    with open_timed_world(sizes=sizes) as timed:
        yield timed


def test_the_only_flow_that_may_go_is_found_in_either_bucket(loaded_two_buckets_world: TimedWorld, fam: Family) -> None:
    """Seven entries are established, one is half-open: it gives way to each newcomer that has its bucket, first or second."""
    timed = loaded_two_buckets_world
    world = timed.reset()
    first = caller(world, fam, XDP, local=True)
    flows = {n: dataclasses.replace(first, port=40000 + n) for n in range(40)}
    for talk in flows.values():
        talk.establish()
    held = {flow.port for flow in table.flows(world, fam)}
    assert len(held) == ENTRIES
    gone = flows[min(held) - 40000]
    assert gone.answer("R").counted == {Reason.FWD_REPLY: 1}
    timed.clock.pass_ticks(ticks_of(ProgramSettings().timeout_closing_s) + 1)
    timed.sweep(fam)
    assert len(table.flows(world, fam)) == ENTRIES - 1
    entered = 0
    for n in range(NEWCOMERS):
        newcomer = dataclasses.replace(first, port=50000 + n)
        entered += newcomer.send("S").counted == {Reason.FWD_LOCAL: 1}
        now = {flow.port for flow in table.flows(world, fam)}
        assert held - {gone.port} <= now, "an established flow loses nothing"
    assert entered >= AT_LEAST


def test_a_flow_in_the_second_bucket_is_told_apart_as_well(loaded_two_buckets_world: TimedWorld, fam: Family) -> None:
    """Six entries are taken, so a client's flow lies in either bucket: its second one to that local backend has a SNAT port."""
    for n in range(24):
        world = loaded_two_buckets_world.reset()
        first = caller(world, fam, XDP, local=True)
        for other in range(6):
            dataclasses.replace(first, port=40000 + 10 * n + other).establish()
        second = Caller(world, world.service(fam, fam.vip2, 80, backends=first.service.backends))
        talks = [dataclasses.replace(talk, port=50000 + n) for talk in (first, second)]
        talks[0].establish()
        assert talks[0].source == talks[0].endpoint
        talks[1].send("S")
        assert talks[1].source[0] == fam.node, n
        for talk in talks:
            assert talk.is_answered("SA"), n


def flow_of_a_backend_that_came_back(
    timed: TimedWorld, fam: Family, n: int, meanwhile: Callable[[Caller], object] = lambda old: None
) -> Caller | None:
    """Take a flow's backend away, let it come back at its address, and open a flow of the same client port to it by another frontend.

    Six other entries are taken, so the two lie in either bucket. Returns the second one, None where it has no entry.
    """
    world = timed.reset()
    first = caller(world, fam, XDP, local=True)
    for other in range(6):
        dataclasses.replace(first, port=40000 + 10 * n + other).establish()
    old = dataclasses.replace(first, port=50000 + n)
    old.establish()
    assert old.backend is not None
    world.remove_backend(old.backend)
    meanwhile(old)
    back = world.backend(fam, old.backend.address, old.backend.port, local=True)
    new = Caller(world, world.service(fam, fam.vip2, 80, backends=[back]), port=old.port)
    has_entry = new.send("S").counted == {Reason.FWD_LOCAL: 1} and len(table.flows(world, fam)) == ENTRIES
    return new if has_entry else None


def test_a_gone_flow_in_the_first_bucket_hides_none_in_the_second(
    loaded_two_buckets_world: TimedWorld, fam: Family
) -> None:
    """The client's port has a flow to the backend that went and to the one that came: the reply is the new one's."""
    rounds = 0
    for n in range(24):
        new = flow_of_a_backend_that_came_back(loaded_two_buckets_world, fam, n)
        if new:
            assert new.is_answered("SA"), n
            rounds += 1
    assert rounds >= 12


@pytest.mark.parametrize("ended", [False, True], ids=["seen_before", "ended"])
def test_of_two_gone_flows_a_reply_is_the_living_ones(
    loaded_two_buckets_world: TimedWorld, fam: Family, *, ended: bool
) -> None:
    """Both frontends of a client's port are gone, with the backend that had one address in both: its receiver gets an error, and no other one."""
    timed, rounds = loaded_two_buckets_world, 0

    def meanwhile(old: Caller) -> None:
        if ended:
            old.answer("R")
        else:
            timed.clock.pass_ticks(1)

    for n in range(24):
        new = flow_of_a_backend_that_came_back(timed, fam, n, meanwhile)
        if new and new.backend:
            new.establish()
            new.world.remove_service(new.service)
            new.world.remove_backend(new.backend)
            assert new.is_answered("PA"), n
            rounds += 1
    assert rounds >= 12
