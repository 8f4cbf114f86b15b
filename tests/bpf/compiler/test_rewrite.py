"""Instructions are rewritten for older kernels and compilers, and the program has the same effect."""

from __future__ import annotations

import os

import pytest

from lbagent.bpf.compiler.rewrite import (
    CAS_CALL,
    MAP_WORDS,
    break_back_edges,
    fallthrough_back_edges,
    insert_compare_and_swap,
    relocate_maps,
    rewrite,
    take_out_calls,
)
from lbagent.kernel import bpf_prog
from lbagent.kernel.opcodes import CALL, EXIT, JA, JEQ_IMM, LD_IMM64, LDX_U64, MOV64_IMM, MOV64_REG, decode, insn

MOV, LD64 = MOV64_IMM, LD_IMM64
ADD, ADD_REG, JNE, MUL, STORE_U64 = 0x07, 0x0F, 0x55, 0x27, 0x7A  # what only this test writes

# sum 10 + 9 + ... + 1 with the body in front of the test, as LLVM lays loops out
BODY_FIRST = b"".join(
    [
        insn(MOV, 0, imm=0),
        insn(MOV, 1, imm=10),
        insn(LD64, 2, imm=7), insn(0),
        insn(JA, offset=2),  # 4: to the test
        insn(ADD_REG, 0, src=1),  # 5: r0 += r1
        insn(ADD, 1, imm=-1),  # 6: falls into the test
        insn(JNE, 1, offset=-3),  # 7: the test
        insn(EXIT),
    ]
)  # fmt: skip
JUMPING_BACK = b"".join(
    [
        insn(MOV, 0, imm=0), insn(MOV, 1, imm=10), insn(JEQ_IMM, 1, offset=3), insn(ADD_REG, 0, src=1), insn(ADD, 1, imm=-1),
        insn(JA, offset=-4), insn(EXIT),
    ]
)  # fmt: skip


def run(code):
    loaded = bpf_prog.prog_load(bpf_prog.ProgType.SCHED_CLS, code, "loop", log_level=1)
    assert loaded.fd >= 0, loaded.log
    try:
        return bpf_prog.prog_test_run(loaded.fd, bytes(64)).retval
    finally:
        os.close(loaded.fd)


def test_the_fall_into_the_head_is_found():
    assert fallthrough_back_edges(BODY_FIRST) == [7]
    assert fallthrough_back_edges(JUMPING_BACK) == []


def test_code_without_such_a_loop_is_left_alone():
    assert break_back_edges(JUMPING_BACK) == (JUMPING_BACK, [])


@pytest.mark.root
@pytest.mark.bpf
def test_rewritten_code_counts_the_same():
    rewritten, places = break_back_edges(BODY_FIRST)
    assert places == [7]
    assert len(rewritten) == len(BODY_FIRST) + 8
    assert fallthrough_back_edges(rewritten) == []
    assert run(rewritten) == 55


def swapping(old, new):
    """A word of 5 on the stack; swap `old` for `new`; return result * 100 + word. A jump over the swap is there too."""
    return b"".join(
        [
            insn(STORE_U64, 10, offset=-8, imm=5), insn(MOV64_REG, 1, src=10), insn(ADD, 1, imm=-8), insn(MOV, 2, imm=old), insn(MOV, 3, imm=new),
            insn(JNE, 2, offset=1, imm=99),  # to the call
            insn(JA, offset=4),  # past it
            insn(CALL, imm=CAS_CALL), insn(MUL, 0, imm=100), insn(LDX_U64, 1, src=10, offset=-8), insn(ADD_REG, 0, src=1), insn(EXIT),
        ]
    )  # fmt: skip


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize(("old", "new", "result"), [(5, 7, 507), (4, 7, 505)])
def test_the_call_becomes_a_compare_and_swap(old, new, result):
    code = swapping(old, new).replace(insn(JA, offset=4), insn(MOV, 0))
    assert run(rewrite(code)) == result


def test_jumps_around_a_replaced_call_still_reach_their_places():
    rewritten = insert_compare_and_swap(swapping(5, 7))
    assert len(rewritten) == len(swapping(5, 7)) + 8
    assert decode(rewritten, 5).offset == 1
    assert decode(rewritten, 6).offset == 5


def word(register, kind, number):
    return insn(LD64, register, imm=number) + insn(0, imm=MAP_WORDS[kind])


def test_words_for_maps_become_relocations_and_settings_loads():
    code = b"".join(
        [
            word(3, "MAP_WORD_FD", 1007), word(4, "MAP_WORD_VALUE", 1008),
            insn(JNE, 1, offset=2),  # 4: over the setting, to the end
            word(5, "MAP_WORD_CONFIG", 24),
            insn(EXIT),
        ]
    )  # fmt: skip
    assert relocate_maps(code, 1030) == b"".join(
        [
            insn(LD64, 3, 1, imm=1007), insn(0), insn(LD64, 4, 2, imm=1008), insn(0),
            insn(JNE, 1, offset=3),
            insn(LD64, 5, 2, imm=1030), insn(0), insn(LDX_U64, 5, 5, offset=24),
            insn(EXIT),
        ]
    )  # fmt: skip


def test_other_constants_are_left_alone():
    code = insn(LD64, 3, imm=-1) + insn(0, imm=0x7E61FFFF) + insn(LD64, 3, 2, imm=5) + insn(0) + insn(EXIT)
    assert relocate_maps(code, 1030) == code


def test_a_call_that_this_kernel_lacks_gives_0_and_all_else_stays():
    code = insn(CALL, imm=5) + insn(JEQ_IMM, offset=1) + insn(CALL, imm=187) + insn(EXIT)
    assert take_out_calls(code, 187) == insn(CALL, imm=5) + insn(JEQ_IMM, offset=1) + insn(MOV64_IMM) + insn(EXIT)
