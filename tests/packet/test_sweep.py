"""A run of the sweeper: its counts of flows, and its progress."""

from __future__ import annotations

import pytest

from lbagent.kernel import bpf_prog
from lbagent.maps.layout import LB_SWEEP, SWEEP_STEP
from tests.packet.caller import Caller, sweep
from tests.packet.craft import Family
from tests.packet.world import TCP, World


def run(world: World, fam: Family, *record: int) -> tuple[int, ...]:
    """Run the sweeper once; return the record as it leaves it, and what it returned."""
    out = bpf_prog.prog_test_run(world.programs[f"sweep{fam.version}"], LB_SWEEP.pack(*record))
    return (*(int(value) for value in LB_SWEEP.unpack(out.data[: LB_SWEEP.size])), out.retval)


def test_each_flow_that_lives_counts_once(world: World, fam: Family, hook: str) -> None:
    """Also one whose frontend is gone, and one that was never answered and whose backend is gone; what has ended does not."""
    assert sweep(world, fam)[0] == 0
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 4)]
    services = [world.service(fam, fam.vip, 80 + n, TCP, [backend]) for n, backend in enumerate(backends)]
    callers = [Caller(world, service, hook=hook) for service in services]
    callers[0].establish()
    callers[1].establish()
    callers[2].send("S")
    assert sweep(world, fam)[0] == 3
    world.remove_service(services[1])
    world.remove_backend(backends[2])
    assert sweep(world, fam)[0] == 3


@pytest.mark.parametrize("count", [0, 1, SWEEP_STEP - 1, SWEEP_STEP, SWEEP_STEP + 1])
def test_how_far_a_run_comes(world: World, fam: Family, count: int) -> None:
    """As many buckets as are due, and no more than a step; earlier counts are kept."""
    done = min(count, SWEEP_STEP)
    assert run(world, fam, 7, count, 0, 0, 5, 9) == (7 + done, count - done, 0, 0, 5, 9, 5)


def test_until_when_ages_are_right(world: World, fam: Family) -> None:
    """The first run of a sweep sets it, from its start; the later ones keep it."""
    until = run(world, fam, 0, 2 * SWEEP_STEP, 1, 0, 0, 0)[5]
    assert until > 0
    assert run(world, fam, SWEEP_STEP, SWEEP_STEP, 1, 0, 0, until - 1)[5] == until - 1
