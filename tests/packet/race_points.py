"""Another CPU runs between two steps of a program: at the points of base/race_point.h, words of the tables change.

The changes of the other CPU are real: its packet is run first, alone, and the words it changed are recorded and restored
(`noted`). Then it is "let in" at a point: the next program that reaches the point writes the same words, and continues.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.c_source import INCLUDE_DIR, UNITS
from lbagent.kernel import bpf_map
from lbagent.kernel.opcodes import JEQ_IMM, LDX_U64, insn
from lbagent.maps import pins
from lbagent.maps.specs import MapSpec, MapType
from tests.packet.splice import (
    ADD64_REG,
    AND64_IMM,
    MUL64_IMM,
    ST_U64_IMM,
    STX_U64,
    map_value,
    with_calls_replaced,
)

if TYPE_CHECKING:
    from lbagent.bpf.compiler.artifact import Artifact
    from tests.packet.world import World

POINTS = {
    name: int(number)
    for name, number in re.findall(r"\bRACE_(\w+) = (\d+)", (INCLUDE_DIR / "base" / "race_point.h").read_text())
}
HELPER = 0x7E000003  # number of a helper that does not exist; the next after those of bpf/compiler/rewrite.py
ARTIFACT = Path(__file__).resolve().parents[2] / "build" / "race_points.bpf.json"
WORDS = {"flow": 20, "snat": 8, "flow_old": 10}  # how many words of a table the other CPU may change at one point
RECORD = 8 + 16 * sum(
    WORDS.values()
)  # bytes a point: armed, then (offset | 1, word) for each; offset 0: no more of this table
Change = dict[tuple[str, int], int]  # table, offset in bytes -> word


@cache
def race_artifact() -> Artifact:
    """Compile the programs with their race points; unchanged ones are reused."""
    ARTIFACT.parent.mkdir(exist_ok=True)
    flag = f"-DLB_RACE_POINTS={HELPER}"
    return builder.build(ARTIFACT, units=[replace(unit, flags=(*unit.flags, flag)) for unit in UNITS])


class RacePoints:
    """The other CPU, for programs that were loaded with it."""

    def __init__(self) -> None:
        """No CPU is let in."""
        self.fd = pins.create_map(MapSpec("test_race", MapType.ARRAY, 4, RECORD * (max(POINTS.values()) + 1), 1))

    def splice(self, artifact: Artifact, maps: Mapping[str, int]) -> Artifact:
        """Return programs of race_artifact() in which the other CPU runs at the points where it is let in."""
        programs = {
            name: with_calls_replaced(item, {HELPER: self._point(maps, item.unit[: len("lb4")])})
            for name, item in artifact.programs.items()
        }
        return replace(artifact, programs=programs)

    def _point(self, maps: Mapping[str, int], family: str) -> bytes:
        """Return the instructions at a point of a family's programs: r1 is its number."""
        body = insn(ST_U64_IMM, dst=2)  # only once
        at = 8
        for table, words in WORDS.items():
            fd = maps.get(f"{family}_{table}")
            if fd is not None:
                body += b"".join(_write(at + 16 * n, fd, rest=words - n) for n in range(words))
            at += 16 * words
        head = insn(MUL64_IMM, dst=1, imm=RECORD) + map_value(2, self.fd) + insn(ADD64_REG, dst=2, src=1)
        head += insn(LDX_U64, dst=3, src=2)
        return head + insn(JEQ_IMM, dst=3, offset=len(body) // 8) + body

    def let_in(self, point: str, *changes: Change) -> None:
        """Let the other CPU make these changes when a program reaches the point for the next time."""
        words: dict[str, list[tuple[int, int]]] = {table: [] for table in WORDS}
        for change in changes:
            for (table, offset), word in change.items():
                words[table].append((offset | 1, word))
        record = struct.pack("=Q", 1)
        for table, found in words.items():
            assert len(found) <= WORDS[table], (point, table, len(found))
            record += b"".join(struct.pack("=QQ", *item) for item in found)
            record += bytes(16 * (WORDS[table] - len(found)))
        at = POINTS[point] * RECORD
        value = bytearray(self._read())
        value[at : at + RECORD] = record
        bpf_map.map_update(self.fd, bytes(4), bytes(value))

    def passed(self, point: str) -> bool:
        """Return whether the point was reached since the other CPU was let in there."""
        return not struct.unpack_from("=Q", self._read(), POINTS[point] * RECORD)[0]

    def close(self) -> None:
        """Close the map."""
        os.close(self.fd)

    def _read(self) -> bytes:
        found = bpf_map.map_lookup(self.fd, bytes(4), RECORD * (max(POINTS.values()) + 1))
        assert found is not None
        return found


def _write(at: int, fd: int, rest: int) -> bytes:
    """Return the instructions of one store; `at`: its place in the record, `rest`: how many of this kind follow, this one included."""
    size = bpf_map.map_info(fd).value_size
    store = insn(LDX_U64, dst=4, src=2, offset=at + 8) + insn(AND64_IMM, dst=3, imm=size - 8)
    store += map_value(1, fd) + insn(ADD64_REG, dst=1, src=3) + insn(STX_U64, dst=1, src=4)
    whole = len(store) // 8 + 2
    return insn(LDX_U64, dst=3, src=2, offset=at) + insn(JEQ_IMM, dst=3, offset=rest * whole - 2) + store


# --- what a packet changes ---


def read(world: World, family: int, table: str) -> tuple[int, ...]:
    """Return a table's words."""
    name = f"lb{family}_{table}"
    size = world.maps.specs[name].value_size
    with world.maps.window(name, 0, size) as view:
        return struct.unpack(f"={size // 8}Q", view)


def noted(world: World, family: int, act: Callable[[], object], names: Sequence[str] = ("flow", "snat")) -> Change:
    """Run an action, and return the words that it changed with their new values; all are restored."""
    before = {table: read(world, family, table) for table in names}
    act()
    change: Change = {}
    for table, words in before.items():
        after = read(world, family, table)
        changed = {at: new for at, (old, new) in enumerate(zip(words, after, strict=True)) if old != new}
        change |= {(table, 8 * at): new for at, new in changed.items()}
        world.maps.store(f"lb{family}_{table}", [(8 * at, words[at].to_bytes(8, "little")) for at in changed])
    return change


def put(world: World, family: int, change: Change) -> None:
    """Write the words at once, between two packets."""
    for (table, offset), word in change.items():
        world.maps.store(f"lb{family}_{table}", [(offset, word.to_bytes(8, "little"))])


def part(change: Change, table: str) -> Change:
    """Return the part of a change that concerns one table."""
    return {place: word for place, word in change.items() if place[0] == table}
