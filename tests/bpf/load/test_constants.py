"""Settings become constants in the instructions, only where this does not change the result."""

from __future__ import annotations

import struct

from lbagent.bpf.compiler.artifact import Program, Relocation
from lbagent.bpf.load.constants import jump_targets, with_constants
from lbagent.kernel.opcodes import (
    CALL,
    EXIT,
    INSN_BYTES,
    JA,
    JEQ_IMM,
    LD_IMM64,
    LDX_U64,
    NOP,
    PSEUDO_MAP_VALUE,
    decode,
    insn,
    is_jump,
)

CONFIG = struct.pack("<4Q", 1, 0xFFFF_FFFF_8000_0001, 3, 4)
END = insn(EXIT)


def address(register: int) -> bytes:
    """Return `r = &lb_config` as the compiler leaves it: 16 bytes."""
    return insn(LD_IMM64, register, PSEUDO_MAP_VALUE, imm=1032) + insn(0)


def load(dst: int, src: int, offset: int, opcode: int = LDX_U64) -> bytes:
    """Return `dst = *(u64 *)(src + offset)`."""
    return insn(opcode, dst, src, offset)


def program(insns: bytes, *relocations: Relocation) -> Program:
    """Return a program of these instructions."""
    return Program("p", "unit", "xdp", insns, relocations)


CONFIG_AT_0 = Relocation(0, "lb_config", True)


def test_a_load_becomes_its_constant() -> None:
    """Both halves of the 64 bits, the register kept, the relocation gone, the length unchanged."""
    out = with_constants(program(address(3) + load(3, 3, 8) + END, CONFIG_AT_0), CONFIG)
    low, high = struct.unpack_from("<I", out.insns, 4)[0], struct.unpack_from("<I", out.insns, 12)[0]
    assert (high << 32 | low) == 0xFFFF_FFFF_8000_0001
    assert out.insns[:2] == bytes([LD_IMM64, 3])
    assert out.insns[16:] == NOP + END
    assert out.relocations == ()


def test_what_is_not_that_pattern_stays() -> None:
    """Another register, another width, another map, no load behind it, beyond the record."""
    cases = [
        program(address(3) + load(4, 3, 8) + END, CONFIG_AT_0),
        program(address(3) + load(3, 3, 8, 0x71) + END, CONFIG_AT_0),
        program(address(3) + load(3, 3, 8) + END, Relocation(0, "lb_filter", True)),
        program(address(3) + load(3, 3, 8) + END, Relocation(0, "lb_config", False)),
        program(address(3) + END, CONFIG_AT_0),
        program(address(3), CONFIG_AT_0),
        program(address(3) + load(3, 3, 32) + END, CONFIG_AT_0),
    ]
    for case in cases:
        assert with_constants(case, CONFIG) == case


def test_a_jump_between_the_two_keeps_them() -> None:
    """A jump to the load may have another address in the register."""
    jump = insn(JEQ_IMM, 1, offset=2)  # if r1 == 0 goto +2: over the address
    insns = jump + address(3) + load(3, 3, 8) + END
    case = program(insns, Relocation(1, "lb_config", True))
    assert jump_targets(insns) == {3}
    assert with_constants(case, CONFIG) == case


def test_every_jump_is_found() -> None:
    """Each opcode once, with an own distance; compared with what decoding the instructions one by one finds."""
    codes = [insn(opcode, opcode & 7, 3, opcode - 128, -1) for opcode in range(256) if opcode != LD_IMM64]
    insns = b"".join(codes) + insn(LD_IMM64, 1, imm=-1) + insn(0, imm=-1) + insn(CALL, imm=JA) + END
    words = [decode(insns, index) for index in range(len(insns) // INSN_BYTES)]
    assert jump_targets(insns) == {at + 1 + word.offset for at, word in enumerate(words) if is_jump(word.opcode)}
    assert len(jump_targets(insns)) > 20
