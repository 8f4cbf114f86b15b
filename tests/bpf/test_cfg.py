"""Loops are mended for older kernels, and the program stays the same program."""

from __future__ import annotations

import os
import struct

import pytest

from lbagent.bpf import bpfsys
from lbagent.bpf.cfg import falling_back_edges, mend_loops


def insn(code, dst=0, src=0, offset=0, imm=0):
    return struct.pack("<BBhi", code, src << 4 | dst, offset, imm)


MOV, ADD, JA, JNE, EXIT, LD64 = 0xB7, 0x07, 0x05, 0x55, 0x95, 0x18

# sum 10 + 9 + ... + 1 with the body in front of the test, as LLVM lays loops out
BODY_FIRST = b"".join(
    [
        insn(MOV, 0, imm=0),
        insn(MOV, 1, imm=10),
        insn(LD64, 2, imm=7), insn(0),
        insn(JA, offset=2),  # 4: to the test
        insn(0x0F, 0, src=1),  # 5: r0 += r1
        insn(ADD, 1, imm=-1),  # 6: falls into the test
        insn(JNE, 1, offset=-3),  # 7: the test
        insn(EXIT),
    ]
)  # fmt: skip
JUMPING_BACK = b"".join(
    [
        insn(MOV, 0, imm=0), insn(MOV, 1, imm=10), insn(0x15, 1, offset=3), insn(0x0F, 0, src=1), insn(ADD, 1, imm=-1),
        insn(JA, offset=-4), insn(EXIT),
    ]
)  # fmt: skip


def run(code):
    loaded = bpfsys.prog_load(bpfsys.ProgType.SCHED_CLS, code, "loop", log_level=1)
    assert loaded.fd >= 0, loaded.log
    try:
        return bpfsys.prog_test_run(loaded.fd, bytes(64)).retval
    finally:
        os.close(loaded.fd)


def test_the_fall_into_the_head_is_found():
    assert falling_back_edges(BODY_FIRST) == [7]
    assert falling_back_edges(JUMPING_BACK) == []


def test_code_without_such_a_loop_is_left_alone():
    assert mend_loops(JUMPING_BACK) == (JUMPING_BACK, [])


@pytest.mark.root
@pytest.mark.bpf
def test_mended_code_counts_the_same():
    mended, places = mend_loops(BODY_FIRST)
    assert places == [7]
    assert len(mended) == len(BODY_FIRST) + 8
    assert falling_back_edges(mended) == []
    assert run(mended) == 55
