"""Rewrites instructions that older kernels reject and older compilers cannot emit; runs after the compiler, for every program.

Loops: LLVM often puts a loop's body before its test, so that the body falls through into the test. `check_cfg` of older kernels
(6.1 among them) rejects that ("back-edge from insn"). It accepts an empty jump (`ja +0`) in between, which the verifier later
removes (`opt_remove_nops`), so it costs nothing.

Compare-and-swap: LLVM before 12 (Ubuntu 22.04) has no such instruction for BPF. There the sources call a helper that does not
exist (`CAS_CALL`), and the call is replaced: its arguments and result are in the registers of the instruction, except for one
move.

Maps and settings: the sources write constants for them (`MAP_WORDS`), because LLVM's own intrinsic for a map counts as a write to
all memory, after which everything is read again. They become loads of a descriptor or of a value's address, as the kernel defines
them. Source: kernel/bpf/verifier.c of Linux 6.1, check_cfg, visit_insn, push_insn (behaviour); Documentation/bpf instruction set.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.kernel.opcodes import (
    ATOMIC_U64,
    CALL,
    CMPXCHG,
    EXIT,
    INSN_BYTES,
    JA,
    LD_IMM64,
    LDX_U64,
    MOV64_IMM,
    MOV64_REG,
    NOP,
    PSEUDO_MAP_VALUE,
    Insn,
    decode,
    insn,
    is_jump,
)  # fmt: skip

CAS_CALL = 0x7E000001  # helper number the sources call; the generated prelude has it
ENTRY6_CALL = 0x7E000002  # the same for the jump bpf/compiler/join_entries.py makes of it
_MOVE_R0_R2 = insn(MOV64_REG, dst=0, src=2)
_CMPXCHG_R1_R3 = insn(ATOMIC_U64, dst=1, src=3, imm=CMPXCHG)  # r0 = cmpxchg_64(r1 + 0, r0, r3)


# High halves of the 64-bit constants that stand for a map's descriptor, the address of its value, a field of lb_config.
MAP_WORDS = {"MAP_WORD_FD": 0x7E620001, "MAP_WORD_VALUE": 0x7E620002, "MAP_WORD_CONFIG": 0x7E620003}


def rewrite(insns: bytes, config: int = 0) -> bytes:
    """Return the instructions with all three rewrites done; `config` is the symbolic descriptor of lb_config."""
    return break_back_edges(insert_compare_and_swap(relocate_maps(insns, config)))[0]


def relocate_maps(insns: bytes, config: int) -> bytes:
    """Make relocations of the constants that stand for maps, and of settings a load behind the address of lb_config."""
    code, loads, index = bytearray(insns), dict[int, bytes](), 0
    kinds = {value: kind for kind, value in enumerate(MAP_WORDS.values(), 1)}
    while index < len(code) // INSN_BYTES:
        opcode, register, source, _, number = decode(code, index)
        if opcode == LD_IMM64:
            kind = kinds.get(decode(code, index + 1).imm, 0)
            at = index * INSN_BYTES
            if kind and not source:
                source, imm = (kind, number) if kind < 3 else (PSEUDO_MAP_VALUE, config)
                code[at : at + 2 * INSN_BYTES] = insn(opcode, register, source, imm=imm) + insn(0)
            if kind == 3:
                loads[index + 2] = insn(LDX_U64, register, register, number)
            index += 1
        index += 1
    return _rewrite(bytes(code), loads, {}) if loads else bytes(code)


def insert_compare_and_swap(insns: bytes) -> bytes:
    """Replace the calls of `CAS_CALL` by the instruction."""
    call = insn(CALL, imm=CAS_CALL)
    places = [at for at in range(len(insns) // INSN_BYTES) if insns[at * INSN_BYTES : (at + 1) * INSN_BYTES] == call]
    return _rewrite(insns, {}, dict.fromkeys(places, _MOVE_R0_R2 + _CMPXCHG_R1_R3)) if places else insns


def take_out_calls(insns: bytes, helper: int) -> bytes:
    """Return the instructions with `r0 = 0` for each call of a helper that this kernel lacks and the program does not need."""
    call, code = insn(CALL, imm=helper), bytearray(insns)
    for at in range(0, len(code), INSN_BYTES):
        if code[at : at + INSN_BYTES] == call:
            code[at : at + INSN_BYTES] = insn(MOV64_IMM)
    return bytes(code)


def break_back_edges(insns: bytes) -> tuple[bytes, list[int]]:
    """Return the instructions with an empty jump at every place that an old kernel would reject, and those places.

    The places are indexes into the old instructions; the jump comes before each.
    """
    places = sorted(set(fallthrough_back_edges(insns)))
    return (_rewrite(insns, dict.fromkeys(places, NOP), {}), places) if places else (insns, [])


def fallthrough_back_edges(insns: bytes) -> list[int]:
    """Return the heads of loops that are reached from the loop's end by falling through.

    Walks depth first, as the kernel does: which edge is a back edge depends on the order.
    """
    codes = [decode(insns, at) for at in range(len(insns) // INSN_BYTES)]
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


def _successors(codes: list[Insn], at: int) -> list[tuple[int, bool]]:
    """Return the successors of an instruction, and whether the kernel allows that edge to close a loop."""
    opcode, _, _, offset, imm = codes[at]
    if opcode == EXIT or (opcode == CALL and imm == ENTRY6_CALL):
        return []
    if opcode == JA:
        return [(at + offset + 1, True)]
    if is_jump(opcode):
        return [(at + 1, True), (at + offset + 1, True)]
    return [(at + 1, False)]


def _rewrite(insns: bytes, before: dict[int, bytes], instead: dict[int, bytes]) -> bytes:
    """Insert code before instructions (jumps skip it, only fall-through reaches it) or replace them."""
    count = len(insns) // INSN_BYTES
    moved, at = [], 0
    for index in range(count):
        at += len(before.get(index, b"")) // INSN_BYTES
        moved.append(at)
        at += len(instead.get(index, NOP)) // INSN_BYTES
    out = bytearray()
    index = 0
    while index < count:
        out += before.get(index, b"")
        opcode, dst, src, offset, imm = decode(insns, index)
        if is_jump(opcode):
            offset = moved[index + 1 + offset] - moved[index] - 1
        out += instead.get(index, insn(opcode, dst, src, offset, imm))
        if opcode == LD_IMM64:  # its second half is data
            index += 1
            out += insns[index * INSN_BYTES : (index + 1) * INSN_BYTES]
        index += 1
    return bytes(out)
