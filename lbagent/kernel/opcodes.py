"""BPF instruction words: the encoding of one instruction, and the opcodes that are read or written here.

Source: Documentation/bpf/standardization/instruction-set.rst; include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

INSN_BYTES = 8
_INSN = struct.Struct("<BBhi")  # opcode, destination register | source register << 4, offset, immediate

LD_IMM64 = 0x18  # two slots wide: the second holds the high half of the value
LDX_U64 = 0x79  # dst = *(u64 *)(src + offset)
LDX_U32 = 0x61
ST_U64, STX_U32, STX_U64 = 0x7A, 0x63, 0x7B  # *(u64 *)(dst + offset) = imm; = src
MOV64_IMM, MOV64_REG = 0xB7, 0xBF
ADD64_IMM = 0x07
ATOMIC_U64 = 0xDB
JA, JEQ_IMM, JNE_REG, CALL, EXIT = 0x05, 0x15, 0x5D, 0x85, 0x95

ATOMIC_ADD = 0  # immediate of ATOMIC_U64: *(u64 *)(dst + offset) += src
CMPXCHG = 0xF1  # immediate of ATOMIC_U64: r0 = cmpxchg_64(dst + offset, r0, src)
PSEUDO_MAP_FD, PSEUDO_MAP_VALUE = 1, 2  # source register of LD_IMM64: the immediate is a map's descriptor
SET_RETVAL = 187  # immediate of CALL: a helper that sets the error of a refused system call
PSEUDO_CALL = 1  # source register of CALL: the immediate is a distance, not a helper

_CLASS_MASK, _OPERATION_MASK = 0x07, 0xF0
_JUMP_CLASSES = (5, 6)  # BPF_JMP, BPF_JMP32


class Insn(NamedTuple):
    """One decoded instruction."""

    opcode: int
    dst: int
    src: int
    offset: int
    imm: int


def insn(opcode: int, dst: int = 0, src: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    """Encode one instruction; `offset` and `imm` are signed."""
    return _INSN.pack(opcode, dst | src << 4, offset, imm)


def decode(code: bytes | bytearray, index: int) -> Insn:
    """Return the instruction at an index (in slots of INSN_BYTES)."""
    opcode, registers, offset, imm = _INSN.unpack_from(code, index * INSN_BYTES)
    return Insn(opcode, registers & 15, registers >> 4, offset, imm)


def is_jump(opcode: int) -> bool:
    """Return whether the instruction's offset is a jump's: not for a call or an exit."""
    return opcode & _CLASS_MASK in _JUMP_CLASSES and opcode & _OPERATION_MASK not in (
        CALL & _OPERATION_MASK, EXIT & _OPERATION_MASK
    )  # fmt: skip


def returning(value: int) -> bytes:
    """Return the instructions of `return value`."""
    return insn(MOV64_IMM, imm=value) + insn(EXIT)


def signed(word: int) -> int:
    """Return an unsigned 32-bit word as the immediate that has its bits."""
    return word - (1 << 32) if word >> 31 else word


NOP = insn(JA)  # `goto +0`; the kernel removes it
