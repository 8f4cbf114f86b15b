"""Instructions are encoded as the kernel reads them, and decoded to the same fields."""

from __future__ import annotations

import pytest

from lbagent.kernel.opcodes import (
    CALL,
    EXIT,
    JA,
    JEQ_IMM,
    LD_IMM64,
    LDX_U64,
    NOP,
    decode,
    insn,
    is_jump,
    returning,
    signed,
)


def test_bytes_are_those_of_the_instruction_set() -> None:
    assert insn(LDX_U64, dst=3, src=10, offset=-8) == bytes([0x79, 0xA3, 0xF8, 0xFF, 0, 0, 0, 0])
    assert insn(CALL, imm=118) == bytes([0x85, 0, 0, 0, 118, 0, 0, 0])
    assert returning(2) == bytes([0xB7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])
    assert bytes([0x05]) + bytes(7) == NOP


def test_what_is_encoded_comes_apart_again() -> None:
    code = NOP + insn(JEQ_IMM, 9, 4, -3, -70000)
    assert decode(code, 1) == (JEQ_IMM, 9, 4, -3, -70000)
    assert decode(bytearray(code), 0) == (JA, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("opcode", "jump"), [(JA, True), (JEQ_IMM, True), (0x56, True), (CALL, False), (EXIT, False), (LD_IMM64, False)]
)
def test_only_jumps_have_a_distance_to_mend(opcode: int, jump: bool) -> None:
    assert is_jump(opcode) is jump


def test_a_word_above_the_sign_is_its_negative_immediate() -> None:
    assert [signed(word) for word in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)] == [0, 1, 0x7FFFFFFF, -0x80000000, -1]
