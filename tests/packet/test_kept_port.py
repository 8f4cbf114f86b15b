"""A connection whose flow found no place keeps its SNAT port: its backend knows it by that."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import Settings
from lbagent.maps.reasons import Reason
from tests.packet.clock import StillClock, TimedWorld, open_timed_world, ticks_of
from tests.packet.craft import Family
from tests.packet.harness import SMALL
from tests.packet.test_clock import caller

ENTRIES = 4
CALLERS = 12
ROUNDS = 24


@pytest.fixture(scope="module")
def loaded_crowded_world() -> Iterator[TimedWorld]:
    """Load programs with one bucket and 32 SNAT ports."""
    sizes = dataclasses.replace(SMALL, flow4=ENTRIES, flow6=ENTRIES)
    with open_timed_world(Settings(snat_port_min=2000, snat_port_max=2031), sizes, StillClock()) as timed:
        yield timed


def test_a_port_that_comes_free_is_not_taken_instead(loaded_crowded_world: TimedWorld, fam: Family, hook: str) -> None:
    """The SYN finds the bucket full of established flows; before the ACK ports come free, which the flow would have asked for earlier."""
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
        timed.clock.pass_ticks(ticks_of(Settings().timeout_closing_s) + 1)
        timed.sweep(fam)
        late.send("A")
        assert late.source == port, n
