"""Settings into the instructions: a load from `lb_config` becomes the constant it would load.

The record is frozen before the programs load, and a change of settings is a new generation, so its fields are constants. The
verifier knows that too, but leaves the load in place; on the path of an established flow eight of them cost 4 % of it.
Pure: instructions in, instructions out.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbagent.bpf.build.artifact import Program

CONFIG_MAP = "lb_config"
_LD_IMM64, _LDX_U64, _NOP = 0x18, 0x79, struct.pack("<BBhi", 0x05, 0, 0, 0)  # the kernel removes `goto +0`
_JUMP_CLASSES, _CALL, _EXIT = (5, 6), 0x80, 0x90


def with_constants(program: Program, config: bytes) -> Program:
    """Return the program with the loads from lb_config that follow their address directly put in as constants.

    Only `rX = &lb_config; rX = *(u64 *)(rX + offset)` is touched, and only where nothing jumps between the two.
    """
    code, targets, kept = bytearray(program.insns), jump_targets(program.insns), []
    for item in program.relocations:
        value = _constant(code, item.index, config) if item.map_name == CONFIG_MAP and item.value else None
        if value is None or item.index + 2 in targets:
            kept.append(item)
            continue
        register = code[item.index * 8 + 1] & 15
        struct.pack_into("<BBhi", code, item.index * 8, _LD_IMM64, register, 0, _signed(value & 0xFFFFFFFF))
        struct.pack_into("<BBhi", code, item.index * 8 + 8, 0, 0, 0, _signed(value >> 32))
        code[item.index * 8 + 16 : item.index * 8 + 24] = _NOP
    return replace(program, insns=bytes(code), relocations=tuple(kept))


def jump_targets(insns: bytes) -> set[int]:
    """Return the indexes of the instructions some jump goes to."""
    out, index = set(), 0
    while index < len(insns) // 8:
        opcode, _, offset, _ = struct.unpack_from("<BBhi", insns, index * 8)
        if opcode & 7 in _JUMP_CLASSES and opcode & 0xF0 not in (_CALL, _EXIT):
            out.add(index + 1 + offset)
        index += 2 if opcode == _LD_IMM64 else 1
    return out


def _constant(code: bytearray, index: int, config: bytes) -> int | None:
    """Return what the instruction behind the address at `index` loads into the same register; None if it does not."""
    if (index + 3) * 8 > len(code):
        return None
    opcode, registers, offset, _ = struct.unpack_from("<BBhi", code, (index + 2) * 8)
    register = code[index * 8 + 1] & 15
    if opcode != _LDX_U64 or registers != (register << 4 | register) or not 0 <= offset <= len(config) - 8:
        return None
    return int(struct.unpack_from("<Q", config, offset)[0])


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
