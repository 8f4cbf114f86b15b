"""Joins two entry points into one program: that of IPv4, then that of IPv6, which is a compile unit of its own.

A few instructions determine a frame's family. A tail call to the other family's program costs 3 ns, 10 % of an IPv6 packet; a
jump costs nothing. So the IPv4 entry NAME calls a helper that does not exist (`ENTRY6_CALL`, with the context in r1, which is how a
program starts); the call becomes a jump, and the instructions of NAME6 follow those of NAME. NAME6 is then no longer a program.
Pure: instructions in, instructions out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lbagent.bpf.compiler.artifact import Program, find_relocations
from lbagent.bpf.compiler.rewrite import ENTRY6_CALL
from lbagent.kernel.opcodes import CALL, INSN_BYTES, JA, insn

_ENTRY6 = insn(CALL, imm=ENTRY6_CALL)


def join_entries(programs: Mapping[str, Program]) -> dict[str, Program]:
    """Return the programs with each IPv6 entry appended to the entry that calls it. Raises KeyError without NAME6."""
    out = dict(programs)
    for name, program in programs.items():
        code = program.insns
        calls = [at for at in range(0, len(code), INSN_BYTES) if code[at : at + INSN_BYTES] == _ENTRY6]
        if not calls:
            continue
        whole = bytearray(code + out.pop(name + "6").insns)
        for at in calls:
            whole[at : at + INSN_BYTES] = insn(JA, offset=(len(code) - at) // INSN_BYTES - 1)
        out[name] = replace(program, insns=bytes(whole), relocations=find_relocations(name, bytes(whole)))
    return out
