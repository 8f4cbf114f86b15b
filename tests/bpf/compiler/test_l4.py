"""The facts of l4.h about each protocol, compiled and run, against the numbers of IANA and the headers scapy builds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from scapy.layers.inet import TCP, UDP
from scapy.layers.sctp import SCTP

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.c_source import Unit, unit_text
from lbagent.kernel import bpf_prog
from lbagent.maps.layout import PathL4
from lbagent.model.address import L4Type
from lbagent.testing.bpf_test_run import run_xdp
from tests.bpf.support import PROGRAMS

pytestmark = [pytest.mark.root, pytest.mark.bpf]
UNIT = Unit("l4_table", PROGRAMS / "l4_table.c", "xdp", ("-DLB_HOOK_XDP",))
LAYERS = {L4Type.TCP: TCP, L4Type.UDP: UDP, L4Type.SCTP: SCTP}
CSUM_AT = {L4Type.TCP: 16, L4Type.UDP: 6, L4Type.SCTP: 8}  # RFC 9293 §3.1, RFC 768, RFC 9260 §3.1
EXTENSIONS = {0, 43, 44, 51, 60}  # RFC 8200 §4, RFC 4302
ICMP = {1, 58}


@pytest.fixture(scope="module")
def program() -> Iterator[int]:
    """Compile and load the program."""
    (made,) = builder.compile_unit(UNIT, unit_text(UNIT), builder.unit_flags(UNIT))
    loaded = bpf_prog.prog_load(bpf_prog.ProgType.XDP, made.insns, "l4_table", log_level=1)
    assert loaded.fd >= 0, loaded.log
    yield loaded.fd
    os.close(loaded.fd)


def ask(program: int, proto: int) -> bytes:
    """Return the answers about a protocol number, the number first."""
    return run_xdp(program, bytes((proto,)) + bytes(63)).packet


@pytest.mark.parametrize("protocol", LAYERS, ids=str)
def test_two_bits_stand_for_each_protocol(program: int, protocol: L4Type) -> None:
    answers = ask(program, protocol.number)
    assert answers[1] == answers[10] == answers[11] == PathL4[protocol.name]
    assert answers[2] == protocol.number


@pytest.mark.parametrize("protocol", LAYERS, ids=str)
def test_header_and_checksum_are_where_the_wire_has_them(program: int, protocol: L4Type) -> None:
    answers = ask(program, protocol.number)
    assert answers[3] == len(LAYERS[protocol]())
    assert answers[4] == CSUM_AT[protocol]


def test_what_is_balanced_and_what_passes(program: int) -> None:
    answers = [ask(program, proto) for proto in range(256)]
    assert {proto for proto in range(256) if answers[proto][5]} == {kind.number for kind in LAYERS}
    assert {proto for proto in range(256) if answers[proto][6]} == {L4Type.UDP.number}
    assert not any(answer[7] for answer in answers)
    assert {proto for proto in range(256) if answers[proto][8]} == ICMP
    assert {proto for proto in range(256) if answers[proto][9]} == EXTENSIONS


def test_the_model_has_a_place_in_path_records_for_each_protocol() -> None:
    assert {protocol.name for protocol in L4Type} == {protocol.name for protocol in PathL4}
