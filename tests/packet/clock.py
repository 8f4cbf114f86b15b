"""A clock that tests set: programs loaded with it see hours pass at once.

The programs read jiffies (flows, slots, answers) and nanoseconds (affinity, handshakes) from the kernel. Here a number of the test replaces
both: the instructions are those that are shipped, except for these calls. So a test can check the tick in which a time-out
ends, on a machine of any speed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lbagent.bpf.load import program_settings
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.sweep import trust_ages
from lbagent.kernel import bpf_map, jiffies
from lbagent.kernel.opcodes import LDX_U64, insn
from lbagent.maps import pins
from lbagent.maps.specs import F_MMAPABLE, MapSpec, MapType, Sizes
from tests.packet.caller import sweep
from tests.packet.harness import DEFAULTS, SMALL, open_world
from tests.packet.splice import map_value, with_calls_replaced

if TYPE_CHECKING:
    from lbagent.bpf.compiler.artifact import Artifact
    from tests.packet.craft import Family
    from tests.packet.world import World

HELPERS = {
    118: 0,
    160: 8,
    5: 8,
}  # bpf_jiffies64, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns: where the map has what is added
SHIFT = program_settings.tick_shift(jiffies.hz())
TICK_NS = (1 << SHIFT) * 1_000_000_000 // jiffies.hz()
TICK_S = TICK_NS / 1e9
WRAP = 1 << 16  # ticks: an entry keeps so many apart
UNIT = 8  # ticks: so many a SNAT slot keeps apart


class Clock:
    """The clock of the programs that were loaded with it. It stands still between two calls of the test."""

    START = (1 << 20) + (40 << 8)  # ticks: a multiple of all that the programs count in

    def __init__(self) -> None:
        """Begin at START."""
        self.fd = pins.create_map(MapSpec("test_clock", MapType.ARRAY, 4, 16, 1, F_MMAPABLE))
        self._ticks = 0
        self.ns = 0  # what the programs read
        self.restart()

    def splice(self, artifact: Artifact, maps: Mapping[str, int]) -> Artifact:
        """Return programs that use only this clock."""
        instead = {number: map_value(1, self.fd, at) + insn(LDX_U64, dst=0, src=1) for number, at in HELPERS.items()}
        programs = {name: with_calls_replaced(item, instead) for name, item in artifact.programs.items()}
        return replace(artifact, programs=programs)

    def pass_ticks(self, ticks: int) -> None:
        """Let time pass."""
        self._ticks += ticks
        self.ns = self._ticks * TICK_NS
        self._write()

    def pass_ns(self, ns: int) -> None:
        """Let nanoseconds pass, and no tick: they are forgotten with the next one."""
        self.ns += ns
        self._write()

    def _write(self) -> None:
        bpf_map.map_update(self.fd, bytes(4), struct.pack("=QQ", self._ticks << SHIFT, self.ns))

    def pass_seconds(self, seconds: float) -> None:
        """Let at least so many seconds pass; less than two ticks more."""
        self.pass_ticks(ticks_of(seconds) + 1)

    def restart(self) -> None:
        """Go back to START; only for programs whose maps are empty."""
        self.pass_ticks(self.START - self._ticks)

    @property
    def tick(self) -> int:
        """The 16 bits of the present tick that entries keep."""
        return self._ticks & (WRAP - 1)

    @property
    def passed(self) -> int:
        """Ticks since the clock was made."""
        return self._ticks - self.START

    def close(self) -> None:
        """Close the map."""
        os.close(self.fd)


def ticks_of(seconds: float) -> int:
    """Return seconds in ticks, rounded as the programs' settings are."""
    return max(1, round(seconds * 1e9 / TICK_NS))


@dataclass(frozen=True)
class TimedWorld:
    """A world and its clock."""

    world: World
    clock: Clock

    def reset(self) -> World:
        """Empty the world, and set the clock back."""
        self.world.reset()
        self.clock.restart()
        return self.world

    def sweep(self, fam: Family, share: float = 1.0) -> tuple[int, int]:
        """Sweep a family's table as the agent does (a part of it: as one that dies meanwhile); return what caller.sweep() does."""
        live, until = sweep(self.world, fam, share)
        if share == 1.0:
            trust_ages(self.world.maps, until)
        return live, until


@contextmanager
def open_timed_world(options: ProgramSettings = DEFAULTS, sizes: Sizes = SMALL) -> Iterator[TimedWorld]:
    """Load every program with a clock of its own."""
    clock = Clock()
    try:
        with open_world(options, sizes, splice=clock.splice) as world:
            yield TimedWorld(world, clock)
    finally:
        clock.close()
