"""Compiles rewritten headers into an artifact, and replaces switches and marks of its programs by constants and map addresses.

In the instructions a switch is a constant of 64 bits: SWITCH_WORD and its number. It becomes 1 in the programs of its mutant and 0 in all
others, and the verifier follows one side of each branch. A mark is a store to such a constant; it becomes the address of a byte in a map.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from lbagent.bpf.compiler import artifact as artifacts
from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.artifact import Artifact, Program
from lbagent.bpf.compiler.c_source import INCLUDE_DIR, INCLUDE_DIRS, UNITS, Unit, unit_text
from lbagent.bpf.compiler.compile import bcc_version
from lbagent.bpf.compiler.join_entries import join_entries
from lbagent.errors import CompileError
from lbagent.kernel.opcodes import INSN_BYTES, LD_IMM64, PSEUDO_MAP_VALUE, decode, insn
from tests.mutants.c_mutants import batch_text, mutated_text
from tests.mutants.c_tree import Tree
from tests.mutants.mutant import ROOT, Mutant

SWITCH_WORD, PLACE_WORD = 0x7E620005, 0x7E620006  # high halves, as MAP_WORDS of bpf/compiler/rewrite.py
_PRELUDE = f"""\
#define MUTANT(n) map_word({SWITCH_WORD}, n)
#define PLACE(n) *(volatile u8 *)map_word({PLACE_WORD}, n) = 1
"""
_AT = re.compile(r"^(\S+?):(\d+):\d+: (?:(?:fatal )?error:|note: expanded from)", re.MULTILINE)


def compile_batch(trees: Mapping[str, Tree], batch: Mapping[int, Mutant]) -> Artifact:
    """Compile the mutants (by the numbers of their switches) into one artifact. Raises CompileError."""
    chosen: dict[str, dict[int, int]] = defaultdict(dict)
    for number, mutant in batch.items():
        chosen[mutant.path][mutant.position] = number
    return compile_headers({path: batch_text(trees[path], numbers) for path, numbers in chosen.items()})


def compile_alone(trees: Mapping[str, Tree], mutant: Mutant, units: Sequence[Unit] = UNITS) -> Artifact:
    """Compile a mutant without a switch. Raises CompileError."""
    return compile_headers({mutant.path: mutated_text(trees[mutant.path], mutant.position)}, units)


def compile_headers(texts: Mapping[str, str], units: Sequence[Unit] = UNITS) -> Artifact:
    """Compile the programs with these headers (paths in the checkout) in the place of those that are there. Raises CompileError."""
    with TemporaryDirectory(prefix="lbagent-mutants-") as folder:
        overlay = Path(folder)
        for source in (*INCLUDE_DIR.rglob("*.h"), *INCLUDE_DIR.parent.glob("*.c")):
            path = str(source.relative_to(ROOT))
            target = overlay / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(texts.get(path) or source.read_text(encoding="utf-8"), encoding="utf-8")
        dirs = tuple(overlay / path.relative_to(ROOT) for path in INCLUDE_DIRS)
        there = [replace(unit, path=overlay / unit.path.relative_to(ROOT)) for unit in units]

        def compiled(unit: Unit) -> list[Program]:
            try:
                return builder.compile_unit(unit, _PRELUDE + unit_text(unit, dirs), builder.unit_flags(unit))
            except CompileError as error:
                raise CompileError(str(error).replace(f"{overlay}/", "")) from None

        with ThreadPoolExecutor() as pool:
            programs = {item.name: item for made in pool.map(compiled, there) for item in made}
    joined = join_entries(programs) if units is UNITS else programs
    return Artifact(joined, "mutants", bcc_version(), "", {}, artifacts.current_layouts())


def culprits(error: CompileError, batch: Mapping[int, Mutant]) -> set[int]:
    """Return the mutants that stand on the lines the compiler complains of."""
    places = {(path, int(line)) for path, line in _AT.findall(str(error))}
    return {number for number, mutant in batch.items() if (mutant.path, mutant.line) in places}


def words(program: Program, high: int) -> dict[int, list[int]]:
    """Return the indexes of the constants with this high half, by their low half."""
    found: dict[int, list[int]] = defaultdict(list)
    index = 0
    while index < program.count:
        word = decode(program.insns, index)
        if word.opcode == LD_IMM64:
            if not word.src and decode(program.insns, index + 1).imm == high:
                found[word.imm].append(index)
            index += 1
        index += 1
    return found


def with_mutant(program: Program, active: int | None) -> Program:
    """Return the program with one switch on and all others off."""
    code = bytearray(program.insns)
    for number, places in words(program, SWITCH_WORD).items():
        for index in places:
            struct.pack_into("<i", code, index * INSN_BYTES + 4, number == active)
            struct.pack_into("<i", code, (index + 1) * INSN_BYTES + 4, 0)
    return replace(program, insns=bytes(code))


def with_marks(program: Program, map_fd: int) -> Program:
    """Return the program whose marks go to the bytes of this map's only value."""
    code = bytearray(program.insns)
    for number, places in words(program, PLACE_WORD).items():
        for index in places:
            register = decode(code, index).dst
            at = index * INSN_BYTES
            code[at : at + 2 * INSN_BYTES] = insn(LD_IMM64, register, PSEUDO_MAP_VALUE, imm=map_fd) + insn(
                0, imm=number
            )
    return replace(program, insns=bytes(code))
