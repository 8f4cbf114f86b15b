"""Instructions as older kernels want them and older compilers cannot write them; done after the compiler, for every program.

Loops: LLVM likes to put a loop's body in front of its test, so that the last instruction of the body simply runs into the
test. `check_cfg` of older kernels (6.1 among them) refuses that ("back-edge from insn"). An empty jump (`ja +0`) in between
satisfies it, and the verifier takes it out again (`opt_remove_nops`): it costs nothing.

Compare-and-swap: LLVM before 12 (Ubuntu 22.04) has no such instruction for BPF. There the sources call a helper that does not
exist (`CAS_CALL`), and the call is replaced: its arguments and result are where the instruction wants them, but for one move.

Maps and settings: the sources write constants for them (`MAP_WORDS`), because LLVM's own intrinsic for a map counts as a write to
all memory, after which everything is read again. They become what the kernel knows: a load of a descriptor or of a value's address.
Source: kernel/bpf/verifier.c of Linux 6.1, check_cfg, visit_insn, push_insn (behaviour); Documentation/bpf instruction set.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_JMP, _JMP32 = 5, 6  # instruction classes
_JA, _CALL, _EXIT = 0x05, 0x85, 0x95
_LD_IMM64 = 0x18
_EMPTY_JUMP = struct.pack("<BBhi", _JA, 0, 0, 0)

CAS_CALL = 0x7E000001  # helper number the sources call; the generated prelude has it
ENTRY6_CALL = 0x7E000002  # the same for the jump bpf/build/join_entries.py makes of it
_MOVE_R0_R2 = struct.pack("<BBhi", 0xBF, 0x20, 0, 0)
_CMPXCHG_R1_R3 = struct.pack("<BBhi", 0xDB, 0x31, 0, 0xF1)  # r0 = cmpxchg_64(r1 + 0, r0, r3)


# High halves of the 64-bit constants the sources write for a map's descriptor, the address of its value, a field of lb_config.
MAP_WORDS = {"MAP_WORD_FD": 0x7E620001, "MAP_WORD_VALUE": 0x7E620002, "MAP_WORD_CONFIG": 0x7E620003}
_LOAD_U64 = 0x79


def rewrite(insns: bytes, config: int = 0) -> bytes:
    """Return the instructions with all three rewrites done; `config` is the symbolic descriptor of lb_config."""
    return break_back_edges(insert_compare_and_swap(relocate_maps(insns, config)))[0]


def relocate_maps(insns: bytes, config: int) -> bytes:
    """Make relocations of the constants that stand for maps, and of settings a load behind the address of lb_config."""
    code, loads, index = bytearray(insns), dict[int, bytes](), 0
    kinds = {value: kind for kind, value in enumerate(MAP_WORDS.values(), 1)}
    while index < len(code) // 8:
        opcode, registers, _, number = struct.unpack_from("<BBhi", code, index * 8)
        if opcode == _LD_IMM64:
            kind = kinds.get(struct.unpack_from("<I", code, index * 8 + 12)[0], 0)
            if kind and registers < 16:
                source, imm = (kind, number) if kind < 3 else (2, config)
                struct.pack_into("<BBhi", code, index * 8, opcode, source << 4 | registers, 0, imm)
                struct.pack_into("<i", code, index * 8 + 12, 0)
            if kind == 3:
                loads[index + 2] = struct.pack("<BBhi", _LOAD_U64, registers << 4 | registers, number, 0)
            index += 1
        index += 1
    return _rewrite(bytes(code), loads, {}) if loads else bytes(code)


def insert_compare_and_swap(insns: bytes) -> bytes:
    """Replace the calls of `CAS_CALL` by the instruction."""
    call = struct.pack("<BBhi", _CALL, 0, 0, CAS_CALL)
    places = [at // 8 for at in range(0, len(insns), 8) if insns[at : at + 8] == call]
    return _rewrite(insns, {}, dict.fromkeys(places, _MOVE_R0_R2 + _CMPXCHG_R1_R3)) if places else insns


def break_back_edges(insns: bytes) -> tuple[bytes, list[int]]:
    """Return the instructions with an empty jump at every place an old kernel would refuse, and those places.

    The places are indexes into the old instructions; the jump stands in front of each.
    """
    places = sorted(set(fallthrough_back_edges(insns)))
    return (_rewrite(insns, dict.fromkeys(places, _EMPTY_JUMP), {}), places) if places else (insns, [])


def fallthrough_back_edges(insns: bytes) -> list[int]:
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
    code, _, offset, imm = codes[at]
    if code == _EXIT or (code == _CALL and imm == ENTRY6_CALL):
        return []
    if code == _JA:
        return [(at + offset + 1, True)]
    if code & 7 in (_JMP, _JMP32) and code != _CALL:
        return [(at + 1, True), (at + offset + 1, True)]
    return [(at + 1, False)]


def _rewrite(insns: bytes, before: dict[int, bytes], instead: dict[int, bytes]) -> bytes:
    """Put code in front of instructions (jumps go past it, only what falls in meets it) or in their place."""
    count = len(insns) // 8
    moved, at = [], 0
    for index in range(count):
        at += len(before.get(index, b"")) // 8
        moved.append(at)
        at += len(instead.get(index, b"8 bytes.")) // 8
    out = bytearray()
    index = 0
    while index < count:
        out += before.get(index, b"")
        code, registers, offset, imm = struct.unpack_from("<BBhi", insns, index * 8)
        if code & 7 in (_JMP, _JMP32) and code not in (_CALL, _EXIT):
            offset = moved[index + 1 + offset] - moved[index] - 1
        out += instead.get(index, struct.pack("<BBhi", code, registers, offset, imm))
        if code == _LD_IMM64:  # its second half is data
            index += 1
            out += insns[index * 8 : index * 8 + 8]
        index += 1
    return bytes(out)
