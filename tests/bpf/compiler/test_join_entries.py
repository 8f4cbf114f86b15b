"""The IPv6 entry follows the IPv4 one, and its call becomes a jump."""

from __future__ import annotations

import os

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.artifact import Program, find_relocations
from lbagent.bpf.compiler.join_entries import join_entries
from lbagent.bpf.compiler.rewrite import ENTRY6_CALL
from lbagent.kernel import bpf_prog
from lbagent.kernel.opcodes import CALL, EXIT, JEQ_IMM, LD_IMM64, LDX_U32, MOV64_IMM, insn
from lbagent.maps.specs import MAP_BASE, MAP_NAMES

MOV, ADD_IMM = MOV64_IMM, 0x07
SKB_LEN = 0  # offset in struct __sk_buff


def program(name, *insns):
    code = b"".join(insns)
    return Program(name, "unit", "tc", code, find_relocations(name, code))


# frames of 64 bytes are "IPv6" here; the part behind needs the context in r1, as at a program's start
FIRST = program("tc_ingress",
    insn(LDX_U32, 2, 1, SKB_LEN), insn(JEQ_IMM, 2, offset=2, imm=64), insn(MOV, 0, imm=4), insn(EXIT), insn(CALL, imm=ENTRY6_CALL))  # fmt: skip
BEHIND = program("tc_ingress6", insn(LDX_U32, 0, 1, SKB_LEN), insn(ADD_IMM, 0, imm=6), insn(EXIT))
OTHER = program("other", insn(MOV, 0, imm=1), insn(EXIT))


def test_only_what_is_called_is_moved():
    out = join_entries({item.name: item for item in (FIRST, BEHIND, OTHER)})
    assert sorted(out) == ["other", "tc_ingress"]
    assert out["other"] is OTHER
    assert out["tc_ingress"].count == FIRST.count + BEHIND.count


def test_a_call_without_its_other_half_is_an_error():
    with pytest.raises(KeyError):
        join_entries({FIRST.name: FIRST})


def test_relocations_of_both_halves_stand():
    descriptor = MAP_BASE + MAP_NAMES.index("lb_filter")
    load = insn(LD_IMM64, 3, 2, imm=descriptor) + insn(0)
    out = join_entries({"a": program("a", load, insn(CALL, imm=ENTRY6_CALL)), "a6": program("a6", load, insn(EXIT))})[
        "a"
    ]
    assert [(item.index, item.map_name) for item in out.relocations] == [(0, "lb_filter"), (3, "lb_filter")]


@pytest.mark.root
@pytest.mark.bpf
def test_the_kernel_runs_both_halves():
    whole = join_entries({item.name: item for item in (FIRST, BEHIND)})["tc_ingress"]
    loaded = bpf_prog.prog_load(bpf_prog.ProgType.SCHED_CLS, whole.insns, "linked", log_level=1)
    assert loaded.fd >= 0, loaded.log
    try:
        assert bpf_prog.prog_test_run(loaded.fd, bytes(64)).retval == 64 + 6
        assert bpf_prog.prog_test_run(loaded.fd, bytes(80)).retval == 4
    finally:
        os.close(loaded.fd)


def test_entry_points_hold_both_families():
    programs = builder.ensure_artifact().programs
    assert not [name for name in programs if name.startswith(("xdp6", "tc_ingress6", "tc_egress6"))]
    assert "tc_after_xdp6" not in programs
    for name in ("xdp", "tc_ingress", "tc_egress"):
        assert {"lb4_flow", "lb6_flow"} <= {item.map_name for item in programs[name].relocations}
