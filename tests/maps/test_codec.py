"""Bytes of the entries, against the layouts as Cilium's headers have them and as docs/datapath.md has the arrays."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps import codec
from lbagent.maps.lbmaps import PathInfo
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, SVC, Algorithm

ADDRESSES = st.builds(
    L3n4Addr.parse,
    st.one_of(
        st.builds(
            "{}:{}/{}".format, st.ip_addresses(v=4), st.integers(0, 65535), st.sampled_from(("TCP", "UDP", "SCTP"))
        ),
        st.builds("[{}]:{}/{}/i".format, st.ip_addresses(v=6), st.integers(0, 65535), st.sampled_from(("TCP", "UDP"))),
    ),
)


def test_the_key_of_a_slot():
    assert codec.service_key(L3n4Addr.parse("10.96.0.1:80/TCP/i"), 258) == bytes(
        (10, 96, 0, 1, 0, 80, 2, 1, 6, 1, 0, 0)  # address, port big-endian; slot little-endian; protocol, scope, pad
    )
    assert codec.service_key(L3n4Addr.parse("[fd00::1]:53/UDP"), 0) == b"\xfd" + bytes(14) + b"\1" + bytes(
        (0, 53, 0, 0, 17, 0, 0, 0)
    )


def svc(*backends: Backend, **more) -> SVC:
    return SVC(L3n4Addr.parse("10.96.0.1:80"), id=0x102, selectable=backends, flags=ServiceFlags(0x2064), **more)


def be(ident: int, text: str = "10.244.1.1:8080", **more) -> Backend:
    return Backend(ident, L3n4Addr.parse(text), **more)


def test_master_and_slots():
    rows = codec.encode(svc(be(7), be(0x10203), others=(be(9),), algorithm=Algorithm.MAGLEV, session_affinity=True))
    assert rows.slots == {
        # target; count; rev_nat_index big-endian; flags, flags2; qcount
        0: struct.pack("<I", 2 << 24 | 10800) + b"\2\0" + b"\1\2" + b"\x64\x20" + b"\1\0",
        1: b"\7\0\0\0" + b"\0\0" + b"\1\2" + b"\x64\x20" + b"\0\0",
        2: b"\3\2\1\0" + b"\0\0" + b"\1\2" + b"\x64\x20" + b"\0\0",
        3: b"\x09\0\0\0" + b"\0\0" + b"\1\2" + b"\x64\x20" + b"\0\0",
    }
    assert rows.affinity == {7, 0x10203}


def test_what_a_random_service_without_options_has():
    rows = codec.encode(svc(be(7)))
    assert rows.slots[0][:4] == struct.pack("<I", 1 << 24)
    assert (rows.affinity, rows.ranges, rows.members) == (frozenset(), frozenset(), ())
    assert rows.reverse == bytes((10, 96, 0, 1, 0, 80, 6, 0))


def test_only_the_reverse_row_tells_that_there_are_backends_elsewhere():
    here, elsewhere = codec.encode(svc()), codec.encode(svc(has_elsewhere=True))
    assert here.slots == elsewhere.slots
    assert (here.reverse[7], elsewhere.reverse[7]) == (0, 0x80)
    assert codec.reverse_frontend(elsewhere.reverse) == L3n4Addr.parse("10.96.0.1:80")


def test_a_wildcard_row_is_a_master_and_nothing_else():
    rows = codec.encode(SVC(L3n4Addr.parse("10.96.0.1:0/NONE"), wildcard=True))
    assert rows == codec.FrontendEntries(0, {0: struct.pack("<I", 1 << 24) + bytes(8)})


def test_the_port_of_an_l7_proxy_takes_the_place_of_the_time_out():
    rows = codec.encode(
        svc(session_affinity=True, l7_lb_proxy_port=15001).__class__(
            L3n4Addr.parse("10.96.0.1:80"),
            id=1,
            flags=ServiceFlags(0x0400),
            l7_lb_proxy_port=15001,
            session_affinity=True,
        )
    )
    assert struct.unpack("<I", rows.slots[0][:4])[0] == 1 << 24 | 15001


def test_ranges_of_the_other_family_are_left_out():
    rows = codec.encode(svc(source_ranges=(CIDR.parse("10.0.0.0/8"), CIDR.parse("fd00::/8"))))
    assert rows.ranges == {struct.pack("<I", 40) + b"\1\2\0\0" + bytes((10, 0, 0, 0))}


def test_a_table_is_made_of_the_set_and_not_of_the_service():
    one, two, idle = be(1, "10.0.0.1:1"), be(2, "10.0.0.2:1", weight=5), be(3, "10.0.0.3:1", weight=0)
    first = codec.encode(svc(one, two, idle, algorithm=Algorithm.MAGLEV))
    other = codec.encode(SVC(L3n4Addr.parse("10.96.0.9:1"), id=7, selectable=(two, one), algorithm=Algorithm.MAGLEV))
    assert first.members == other.members
    table = codec.table_bytes(first.members, 251)
    assert table is codec.table_bytes(other.members, 251)
    assert set(struct.unpack("<251I", table)) == {1, 2}


def test_a_backend_row():
    value = codec.backend_value(L3n4Addr.parse("10.244.1.7:8080/UDP"), BackendState.QUARANTINED)
    assert value == bytes((10, 244, 1, 7, 0x1F, 0x90, 17, 2, 0, 0, 0, 0))
    assert len(codec.backend_value(L3n4Addr.parse("[fd00::1]:80"), BackendState.ACTIVE)) == 24


def test_path_records():
    info = PathInfo(bytes((192, 168, 0, 1)), 0x123, 1500)
    record = codec.path_value(be(1, "10.244.1.7:8080/UDP"), info, 9, selectable=True)
    assert record == bytes((10, 244, 1, 7, 192, 168, 0, 1, 0x1F, 0x90, 9, 1 | 2 | 16, 0x23, 1, 0xDC, 5))
    local = codec.path_value(be(1), PathInfo(local=True, host=True), 255, selectable=False)
    assert local == bytes((10, 244, 1, 1, 0, 0, 0, 0, 0x1F, 0x90, 255, 1 | 4 | 8, 0, 0, 0, 0))
    six = codec.path_value(be(1, "[fd00::1]:80"), PathInfo(b"\xfe" * 16, 1, 2), 3, selectable=False)
    assert six == b"\xfd" + bytes(14) + b"\1" + b"\xfe" * 16 + bytes((0, 80, 3, 1, 1, 0, 2, 0)) + bytes(24)


@pytest.mark.parametrize("text", ["10.0.0.1:80", "[fd00::1]:80"])
def test_a_source_address_of_the_other_family_is_none(text):
    other = b"\1" * (16 if text[0] == "1" else 4)
    path = codec.path_of(codec.path_value(be(1, text), PathInfo(other), 0, selectable=True))
    assert set(path.snat) == {0}


@pytest.mark.parametrize(("gen", "after"), [(0, 1), (7, 8), (255, 0)])
@pytest.mark.parametrize("text", ["10.0.0.1:80", "[fd00::1]:80"])
def test_the_record_of_a_gone_backend_has_the_next_generation(text, gen, after):
    record = codec.path_value(be(1, text), PathInfo(b"", 5, 1500, local=True), gen, selectable=True)
    path = codec.path_of(codec.gone_path(record))
    assert (path.gen, path.flags, path.live) == (after, 0, False)
    assert len(codec.gone_path(record)) == len(record)


@given(ADDRESSES, st.integers(0, 65535))
def test_a_service_key_comes_apart_again(frontend, slot):
    name, found = codec.split_service_key(codec.service_key(frontend, slot))
    assert (codec.frontend_of(name), found) == (frontend, slot)


@given(ADDRESSES, st.sampled_from([s for s in BackendState if s is not BackendState.INVALID]))
def test_a_backend_row_comes_apart_again(address, state):
    address = address.with_scope(type(address.scope)(0))
    assert codec.backend_of(codec.backend_value(address, state)) == (address, state)


@given(ADDRESSES)
def test_a_reverse_row_comes_apart_again(frontend):
    assert codec.reverse_frontend(codec.reverse_value(frontend)) == frontend


@given(st.integers(1, 65535), st.integers(1, (1 << 20) - 1))
def test_an_affinity_key_comes_apart_again(service, backend):
    assert codec.affinity_ids(codec.affinity_key(service, backend)) == (service, backend)


def test_filter_bits_lie_where_the_program_looks():
    """(address word x 0x9E3779B1) >> 12; two bits a position, then a plane of one bit a position."""
    address = bytes((1, 0, 0, 0))
    position = 0x9E3779B1 >> 12
    assert codec.vip_bit(address) == 2 * position
    assert codec.snat_bit(address) == 2 * position + 1
    assert codec.source_bit(address) == 2 * (1 << 20) + position
