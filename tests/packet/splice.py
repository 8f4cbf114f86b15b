"""Replaces helper calls in compiled programs by other instructions: a clock that can be set, a CPU that runs in between.

The shipped programs stay unchanged: a test takes the built artifact, changes it in memory and loads that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from lbagent.kernel.opcodes import CALL, INSN_BYTES, LD_IMM64, PSEUDO_MAP_VALUE, decode, insn, is_jump

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lbagent.bpf.compiler.artifact import Program

ADD64_REG, MUL64_IMM, AND64_IMM = 0x0F, 0x27, 0x57
ST_U64_IMM, STX_U64 = 0x7A, 0x7B


def map_value(register: int, fd: int, offset: int = 0) -> bytes:
    """Return the instruction that loads the address of an array's only value, plus `offset` bytes."""
    return insn(LD_IMM64, dst=register, src=PSEUDO_MAP_VALUE, imm=fd) + insn(0, imm=offset)


def with_calls_replaced(program: Program, instead: Mapping[int, bytes]) -> Program:
    """Return the program with the calls of these helpers (by number) replaced; jumps and relocations are moved along.

    The new instructions may use r0 to r5, as a call does, and may hold the call itself.
    """
    code, pieces, places = program.insns, list[tuple[int, bytes]](), dict[int, int]()
    index = at = 0
    while index < program.count:
        word = decode(code, index)
        slots = 2 if word.opcode == LD_IMM64 else 1
        piece = code[index * INSN_BYTES : (index + slots) * INSN_BYTES]
        if word.opcode == CALL and not word.src:
            piece = instead.get(word.imm, piece)
        places[index] = at
        pieces.append((index, piece))
        at += len(piece) // INSN_BYTES
        index += slots
    places[index] = at
    out = bytearray()
    for index, piece in pieces:
        word = decode(code, index)
        if is_jump(word.opcode):
            offset = places[index + 1 + word.offset] - places[index] - 1
            piece = insn(word.opcode, word.dst, word.src, offset, word.imm)
        out += piece
    moved = tuple(structs.replace(item, index=places[item.index]) for item in program.relocations)
    return replace(program, insns=bytes(out), relocations=moved)
