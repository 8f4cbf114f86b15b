"""Loops as older kernels (6.1 among them) want them: back to the head by a jump, never by falling into it.

LLVM likes to put a loop's body in front of its test, so that the last instruction of the body simply runs into the test.
Their `check_cfg` refuses that ("back-edge from insn"). An empty jump (`ja +0`) in between satisfies it, and the
verifier takes it out again (`opt_remove_nops`): it costs nothing. Found and mended here, after the compiler.
Source: kernel/bpf/verifier.c of Linux 6.1, check_cfg, visit_insn, push_insn (behaviour).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_JMP, _JMP32 = 5, 6  # instruction classes
_JA, _CALL, _EXIT = 0x05, 0x85, 0x95
_LD_IMM64 = 0x18
_EMPTY_JUMP = struct.pack("<BBhi", _JA, 0, 0, 0)


def mend_loops(insns: bytes) -> tuple[bytes, list[int]]:
    """Return the instructions with an empty jump at every place an old kernel would refuse, and those places.

    The places are indexes into the old instructions; the jump stands in front of each.
    """
    places = sorted(set(falling_back_edges(insns)))
    return (_insert_jumps(insns, places), places) if places else (insns, [])


def falling_back_edges(insns: bytes) -> list[int]:
    """Return the heads of loops that are reached from the loop's end by falling through.

    Walks depth first, as the kernel does; what it calls a back edge depends on the order.
    """
    codes = [struct.unpack_from("<BBhi", insns, at) for at in range(0, len(insns), 8)]
    found: list[int] = []
    on_path, done = {0}, set[int]()
    stack: list[tuple[int, Iterator[tuple[int, bool]]]] = [(0, iter(_successors(codes, 0)))]
    while stack:
        here, edges = stack[-1]
        edge = next(edges, None)
        if edge is None:
            stack.pop()
            on_path.discard(here)
            done.add(here)
            continue
        target, jump = edge
        if target in on_path:
            if not jump:
                found.append(target)
        elif target not in done:
            on_path.add(target)
            stack.append((target, iter(_successors(codes, target))))
    return found


def _successors(codes: list[tuple[int, int, int, int]], at: int) -> list[tuple[int, bool]]:
    """Return where an instruction goes next, and whether the kernel lets that edge close a loop."""
    code, _, offset, _ = codes[at]
    if code == _EXIT:
        return []
    if code == _JA:
        return [(at + offset + 1, True)]
    if code & 7 in (_JMP, _JMP32) and code != _CALL:
        return [(at + 1, True), (at + offset + 1, True)]
    return [(at + 1, False)]


def _insert_jumps(insns: bytes, places: list[int]) -> bytes:
    """Put an empty jump in front of each place; only what falls into the place meets it, jumps go past it."""
    count = len(insns) // 8
    moved, shift = [0] * (count + 1), 0
    for index in range(count + 1):
        shift += index in places
        moved[index] = index + shift
    out = bytearray()
    index = 0
    while index < count:
        if index in places:
            out += _EMPTY_JUMP
        code, registers, offset, imm = struct.unpack_from("<BBhi", insns, index * 8)
        if code & 7 in (_JMP, _JMP32) and code not in (_CALL, _EXIT):
            offset = moved[index + 1 + offset] - moved[index] - 1
        out += struct.pack("<BBhi", code, registers, offset, imm)
        if code == _LD_IMM64:  # its second half is data
            index += 1
            out += insns[index * 8 : index * 8 + 8]
        index += 1
    return bytes(out)
