"""The echo: only a host with the key gets an answer, which is no longer than the question, and counts for this question alone."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.liveness.echo_packet import ANSWER, QUESTION, STEP_S, Echo, answer_to, read_echo, step_at, write_echo

KEY, OTHER_KEY = b"0123456789abcdef", b"0123456789abcdeF"
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?", fullmatch=True)
NONCES = st.binary(min_size=16, max_size=16)


@given(st.sampled_from([QUESTION, ANSWER]), st.integers(0, 2**60), NONCES, NAMES)
def test_round_trip(kind: int, step: int, nonce: bytes, node: str) -> None:
    echo = Echo(kind, step, nonce, node)
    assert read_echo(write_echo(echo, KEY), KEY) == echo


def test_the_layout() -> None:
    """Written out by hand, with the HMAC of the standard library."""
    head = b"lbn1" + b"\x01" + (7).to_bytes(8, "big") + bytes(range(16)) + b"\x06node-1"
    assert (
        write_echo(Echo(QUESTION, 7, bytes(range(16)), "node-1"), KEY)
        == head + hmac.new(KEY, head, hashlib.sha256).digest()
    )


@given(st.integers(0, 2**60), NONCES, NAMES)
def test_the_answer_is_as_long_as_the_question_and_repeats_its_nonce(step: int, nonce: bytes, node: str) -> None:
    question = write_echo(Echo(QUESTION, step, nonce, node), KEY)
    answer = answer_to(question, KEY, node, step)
    assert answer is not None
    assert len(answer) == len(question)
    assert read_echo(answer, KEY) == Echo(ANSWER, step, nonce, node)


@given(NONCES, NAMES, st.data())
def test_a_changed_or_cut_question_gets_no_answer(nonce: bytes, node: str, data: st.DataObject) -> None:
    question = bytearray(write_echo(Echo(QUESTION, 5, nonce, node), KEY))
    at = data.draw(st.integers(0, len(question) * 8 - 1))
    question[at // 8] ^= 1 << at % 8
    assert answer_to(bytes(question), KEY, node, 5) is None
    question[at // 8] ^= 1 << at % 8
    assert answer_to(bytes(question)[: data.draw(st.integers(0, len(question) - 1))], KEY, node, 5) is None
    assert answer_to(bytes(question) + b"\0", KEY, node, 5) is None


@given(st.binary(max_size=400))
def test_noise_gets_no_answer(noise: bytes) -> None:
    assert answer_to(noise, KEY, "node-1", 5) is None
    assert answer_to(b"lbn1" + noise, KEY, "node-1", 5) is None


def test_another_key_another_node_and_no_key() -> None:
    question = write_echo(Echo(QUESTION, 5, bytes(16), "node-1"), KEY)
    assert answer_to(question, OTHER_KEY, "node-1", 5) is None
    assert answer_to(question, KEY, "node-2", 5) is None
    assert answer_to(question, b"", "node-1", 5) is None
    assert answer_to(write_echo(Echo(QUESTION, 5, bytes(16), "node-1"), b""), b"", "node-1", 5) is None


def test_an_answer_gets_no_answer() -> None:
    assert answer_to(write_echo(Echo(ANSWER, 5, bytes(16), "node-1"), KEY), KEY, "node-1", 5) is None


@pytest.mark.parametrize(("step", "is_answered"), [(3, False), (4, True), (5, True), (6, True), (7, False)])
def test_an_old_question_gets_no_answer(step: int, is_answered: bool) -> None:
    question = write_echo(Echo(QUESTION, step, bytes(16), "node-1"), KEY)
    assert (answer_to(question, KEY, "node-1", 5) is not None) is is_answered


def test_steps() -> None:
    assert step_at(STEP_S * 4) == 4
    assert step_at(STEP_S * 5 - 0.01) == 4


def test_a_name_longer_than_one_of_dns_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        write_echo(Echo(QUESTION, 1, bytes(16), "a" * 254), KEY)
    assert len(write_echo(Echo(QUESTION, 1, bytes(16), "a" * 253), KEY)) < 400
