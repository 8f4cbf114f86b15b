"""Only the agent runs the sweeper and the mover; they leave input that is no record of theirs unchanged."""

from __future__ import annotations

import pytest

from lbagent.kernel import bpf_prog
from lbagent.maps.layout import LB_MIGRATE, LB_SWEEP
from tests.packet.craft import Family
from tests.packet.world import TCP, World

PROGRAMS = pytest.mark.parametrize(("program", "size"), [("sweep", LB_SWEEP.size), ("migrate", LB_MIGRATE.size)])


@PROGRAMS
@pytest.mark.parametrize("missing", [1, 8])
def test_less_than_a_record(world: World, fam: Family, program: str, size: int, missing: int) -> None:
    """A few bytes too few: nothing is done, nothing written, and nothing counted as live."""
    data = bytes(range(1, size - missing + 1))
    out = bpf_prog.prog_test_run(world.programs[f"{program}{fam.version}"], data)
    assert (out.retval, out.data) == (0, data)


@pytest.mark.parametrize("what", range(4))
def test_the_mover_without_a_resize(world: World, fam: Family, what: int) -> None:
    """There is nothing to move: the record stays unchanged, whatever it requests."""
    backend = world.backend(fam, fam.remote(1), 8080)
    world.service(fam, fam.vip, 80, TCP, [backend])
    data = LB_MIGRATE.pack(0, 16, what, 0, 0, 0, 0, 0)
    out = bpf_prog.prog_test_run(world.programs[f"migrate{fam.version}"], data)
    assert (out.retval, out.data[: LB_MIGRATE.size]) == (0, data)
