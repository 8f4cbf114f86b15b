"""A connection without an entry, as its flow found no place or lost it, keeps its SNAT port, by which its backend identifies it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet.clock import TimedWorld, open_timed_world, ticks_of
from tests.packet.craft import Family
from tests.packet.harness import SMALL
from tests.packet.test_clock import caller
from tests.packet.test_migrate import Change, changes
from tests.packet.world import XDP

FEW_PORTS = ProgramSettings(snat_port_min=2000, snat_port_max=2031)
ENTRIES = 4
CALLERS = 12
ROUNDS = 24


@pytest.fixture(scope="module")
def loaded_crowded_world() -> Iterator[TimedWorld]:
    """Load programs with one bucket and 32 SNAT ports."""
    sizes = dataclasses.replace(SMALL, flow4=ENTRIES, flow6=ENTRIES)
    with open_timed_world(FEW_PORTS, sizes) as timed:
        yield timed


def test_a_port_that_comes_free_is_not_taken_instead(loaded_crowded_world: TimedWorld, fam: Family, hook: str) -> None:
    """The SYN finds the bucket full of established flows; before the ACK, ports are freed that come earlier in the flow's order."""
    timed = loaded_crowded_world
    for n in range(ROUNDS):
        world = timed.reset()
        first = caller(world, fam, hook, local=False)
        others = [dataclasses.replace(first, port=40000 + n * CALLERS + k) for k in range(CALLERS)]
        for other in others:
            other.establish()
        late = dataclasses.replace(first, port=50000 + n)
        assert late.send("S").counted == {Reason.FWD_NO_STATE: 1}
        port = late.source
        for other in others[:ENTRIES]:
            other.answer("R")
        timed.clock.pass_ticks(ticks_of(ProgramSettings().timeout_closing_s) + 1)
        timed.sweep(fam)
        late.send("A")
        assert late.source == port, n


@pytest.fixture(scope="module", params=[4, -4], ids=["grow", "shrink"])
def loaded_crowded_change(request: pytest.FixtureRequest) -> Iterator[Change]:
    """A change of the number of SNAT slots, with 32 ports to give."""
    bits = 16 + request.param
    yield from changes(
        dataclasses.replace(SMALL, snat4=1 << 16, snat6=1 << 16),
        dataclasses.replace(SMALL, snat4=1 << bits, snat6=1 << bits),
        options=FEW_PORTS,
    )


@pytest.mark.parametrize("moved", [False, True], ids=["before_its_slot_is_moved", "after"])
def test_half_way_through_a_resize(loaded_crowded_change: Change, fam: Family, *, moved: bool) -> None:
    """The port is kept in the slots that are being left."""
    change = loaded_crowded_change
    change.reset()
    first = caller(change.world, fam, XDP, local=False)
    callers = [dataclasses.replace(first, port=40000 + n) for n in range(2 * CALLERS)]
    refused, kept = callers[:CALLERS], callers[CALLERS:]
    for one in refused:
        one.send("S")
    for one in kept:
        one.establish()
    for one in refused:
        one.answer("R")  # ports are freed that come earlier in the order
    change.world.clear(f"lb{fam.version}_flow")
    change.begin()
    if moved:
        change.all()
    assert [one.stays() for one in kept] == [True] * CALLERS
