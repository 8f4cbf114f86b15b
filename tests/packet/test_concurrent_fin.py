"""Both sides close at once, their packets on two CPUs: the flow closes, whichever CPU was first."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.c_source import Unit, unit_text
from lbagent.bpf.load import program_settings
from lbagent.bpf.load.constants import with_constants
from lbagent.bpf.load.loader import generation_maps, load_program, with_old_maps
from lbagent.kernel import jiffies
from lbagent.testing.bpf_test_run import run_xdp
from tests.packet.harness import SEEDS, SMALL
from tests.packet.table import CLOSING, EST
from tests.packet.world import World

SOURCE = Path(__file__).parents[1] / "bpf" / "programs" / "refresh.c"
FIN, ACK = 1, 16
FIN_CLIENT, FIN_BACKEND = (
    1 << 18,
    1 << 19,
)  # docs/datapath.md: "FIN seen 2", behind generation, slot generation and state
BACKEND = 7 << 44 | 3 << 36


@pytest.fixture(scope="module", params=[4, 6], ids=["ipv4", "ipv6"])
def program(request: pytest.FixtureRequest, loaded_world: World) -> Iterator[int]:
    """Compile and load the program that notes one packet beside another CPU's."""
    unit = Unit("refresh", SOURCE, "xdp", ("-DLB_HOOK_XDP", f"-DLB_FAMILY={request.param}"))
    (made,) = builder.compile_unit(unit, unit_text(unit), builder.unit_flags(unit))
    config = program_settings.pack_config(program_settings.ProgramSettings(), SMALL, SEEDS, jiffies.hz())
    with generation_maps(config) as own:
        fd = load_program(with_constants(made, config), with_old_maps({**loaded_world.maps.fds, **own}))  # type: ignore[attr-defined]
    yield fd
    os.close(fd)


def value(state: int, fins: int = 0) -> int:
    """Return the value word of a local flow."""
    return BACKEND | fins | state << 16 | 5


def noted(program: int, now: int, read: int, flags: int, *, from_backend: bool) -> int:
    """Return the value after a packet is noted on a CPU that had read `read` when the entry held `now` already."""
    frame = struct.pack("=QQBB", now, read, flags, from_backend) + bytes(46)
    return int(struct.unpack_from("=Q", run_xdp(program, frame).packet)[0])


@pytest.mark.parametrize("from_backend", [False, True], ids=["client", "backend"])
def test_two_fins_at_once_close_the_flow(program: int, *, from_backend: bool) -> None:
    """The other side's FIN was recorded between read and change: both are in the entry, and it closes."""
    others = FIN_CLIENT if from_backend else FIN_BACKEND
    after = noted(program, value(EST, others), value(EST), FIN | ACK, from_backend=from_backend)
    assert after == value(CLOSING, FIN_CLIENT | FIN_BACKEND)


def test_an_entry_that_is_another_flows_by_now_is_left_alone(program: int) -> None:
    """A new generation, or another backend: the packet has no effect on it."""
    for other in (value(EST) + 1, value(EST) + (1 << 44)):
        assert noted(program, other, value(EST), FIN | ACK, from_backend=False) == other
