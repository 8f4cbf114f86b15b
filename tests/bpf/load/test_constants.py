"""Settings become constants in the instructions, and only where that changes nothing."""

from __future__ import annotations

import struct

from lbagent.bpf.build.artifact import Program, Relocation
from lbagent.bpf.load.constants import jump_targets, with_constants

CONFIG = struct.pack("<4Q", 1, 0xFFFF_FFFF_8000_0001, 3, 4)
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)
NOP = struct.pack("<BBhi", 0x05, 0, 0, 0)


def address(register: int) -> bytes:
    """Return `r = &lb_config` as the compiler leaves it: 16 bytes."""
    return struct.pack("<BBhi", 0x18, 2 << 4 | register, 0, 1032) + bytes(8)


def load(dst: int, src: int, offset: int, opcode: int = 0x79) -> bytes:
    """Return `dst = *(u64 *)(src + offset)`."""
    return struct.pack("<BBhi", opcode, src << 4 | dst, offset, 0)


def program(insns: bytes, *relocations: Relocation) -> Program:
    """Return a program of these instructions."""
    return Program("p", "unit", "xdp", insns, relocations)


CONFIG_AT_0 = Relocation(0, "lb_config", True)


def test_a_load_becomes_its_constant() -> None:
    """Both halves of the 64 bits, the register kept, the relocation gone, the length unchanged."""
    out = with_constants(program(address(3) + load(3, 3, 8) + EXIT, CONFIG_AT_0), CONFIG)
    low, high = struct.unpack_from("<I", out.insns, 4)[0], struct.unpack_from("<I", out.insns, 12)[0]
    assert (high << 32 | low) == 0xFFFF_FFFF_8000_0001
    assert out.insns[:2] == bytes([0x18, 3])
    assert out.insns[16:] == NOP + EXIT
    assert out.relocations == ()


def test_what_is_not_that_pattern_stays() -> None:
    """Another register, another width, another map, no load behind it, beyond the record."""
    cases = [
        program(address(3) + load(4, 3, 8) + EXIT, CONFIG_AT_0),
        program(address(3) + load(3, 3, 8, 0x71) + EXIT, CONFIG_AT_0),
        program(address(3) + load(3, 3, 8) + EXIT, Relocation(0, "lb_filter", True)),
        program(address(3) + load(3, 3, 8) + EXIT, Relocation(0, "lb_config", False)),
        program(address(3) + EXIT, CONFIG_AT_0),
        program(address(3), CONFIG_AT_0),
        program(address(3) + load(3, 3, 32) + EXIT, CONFIG_AT_0),
    ]
    for case in cases:
        assert with_constants(case, CONFIG) == case


def test_a_jump_between_the_two_keeps_them() -> None:
    """Who jumps to the load brings an address of his own."""
    jump = struct.pack("<BBhi", 0x15, 1, 2, 0)  # if r1 == 0 goto +2: over the address
    insns = jump + address(3) + load(3, 3, 8) + EXIT
    case = program(insns, Relocation(1, "lb_config", True))
    assert jump_targets(insns) == {3}
    assert with_constants(case, CONFIG) == case
