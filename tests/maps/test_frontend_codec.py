"""Bytes of a frontend's entries, against the layouts as Cilium's headers have them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps import frontend_codec
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, SVC, Algorithm
from tests.maps.addresses import ADDRESSES


def test_the_key_of_a_slot():
    assert frontend_codec.service_key(L3n4Addr.parse("10.96.0.1:80/TCP/i"), 258) == bytes(
        (10, 96, 0, 1, 0, 80, 2, 1, 6, 1, 0, 0)  # address, port big-endian; slot little-endian; protocol, scope, pad
    )
    assert frontend_codec.service_key(L3n4Addr.parse("[fd00::1]:53/UDP"), 0) == b"\xfd" + bytes(14) + b"\1" + bytes(
        (0, 53, 0, 0, 17, 0, 0, 0)
    )


def svc(*backends: Backend, **more) -> SVC:
    return SVC(L3n4Addr.parse("10.96.0.1:80"), id=0x102, selectable=backends, flags=ServiceFlags(0x2064), **more)


def be(ident: int, text: str = "10.244.1.1:8080", **more) -> Backend:
    return Backend(ident, L3n4Addr.parse(text), **more)


def test_master_and_slots():
    rows = frontend_codec.encode(
        svc(be(7), be(0x10203), unselectable=(be(9),), algorithm=Algorithm.MAGLEV, session_affinity=True)
    )
    assert rows.slots == {
        # target; count; rev_nat_index big-endian; flags, flags2; qcount
        0: struct.pack("<I", 2 << 24 | 10800) + b"\2\0" + b"\1\2" + b"\x64\x20" + b"\1\0",
        1: b"\7\0\0\0" + b"\0\0" + b"\1\2" + b"\x64\x20" + b"\0\0",
        2: b"\3\2\1\0" + b"\0\0" + b"\1\2" + b"\x64\x20" + b"\0\0",
        3: b"\x09\0\0\0" + b"\0\0" + b"\1\2" + b"\x64\x20" + b"\0\0",
    }
    assert rows.affinity == {7, 0x10203}


def test_what_a_random_service_without_options_has():
    rows = frontend_codec.encode(svc(be(7)))
    assert rows.slots[0][:4] == struct.pack("<I", 1 << 24)
    assert (rows.affinity, rows.ranges, rows.members) == (frozenset(), frozenset(), ())
    assert rows.reverse == bytes((10, 96, 0, 1, 0, 80, 6, 0))


def test_only_the_reverse_row_tells_that_there_are_backends_elsewhere():
    here, elsewhere = frontend_codec.encode(svc()), frontend_codec.encode(svc(no_local_backend=True))
    assert here.slots == elsewhere.slots
    assert (here.reverse[7], elsewhere.reverse[7]) == (0, 0x80)
    assert frontend_codec.reverse_nat_frontend(elsewhere.reverse) == L3n4Addr.parse("10.96.0.1:80")


def test_a_wildcard_row_is_a_master_and_nothing_else():
    rows = frontend_codec.encode(SVC(L3n4Addr.parse("10.96.0.1:0/NONE"), wildcard=True))
    assert rows == frontend_codec.FrontendEntries(0, {0: struct.pack("<I", 1 << 24) + bytes(8)})


def test_the_port_of_an_l7_proxy_takes_the_place_of_the_time_out():
    rows = frontend_codec.encode(
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
    rows = frontend_codec.encode(svc(source_ranges=(CIDR.parse("10.0.0.0/8"), CIDR.parse("fd00::/8"))))
    assert rows.ranges == {struct.pack("<I", 40) + b"\1\2\0\0" + bytes((10, 0, 0, 0))}


def test_a_table_is_made_of_the_set_and_not_of_the_service():
    one, two, idle = be(1, "10.0.0.1:1"), be(2, "10.0.0.2:1", weight=5), be(3, "10.0.0.3:1", weight=0)
    first = frontend_codec.encode(svc(one, two, idle, algorithm=Algorithm.MAGLEV))
    other = frontend_codec.encode(
        SVC(L3n4Addr.parse("10.96.0.9:1"), id=7, selectable=(two, one), algorithm=Algorithm.MAGLEV)
    )
    assert first.members == other.members
    table = frontend_codec.maglev_table(first.members, 251)
    assert table is frontend_codec.maglev_table(other.members, 251)
    assert set(struct.unpack("<251I", table)) == {1, 2}


@given(ADDRESSES, st.integers(0, 65535))
def test_a_service_key_comes_apart_again(frontend, slot):
    name, found = frontend_codec.split_service_key(frontend_codec.service_key(frontend, slot))
    assert (frontend_codec.frontend_of(name), found) == (frontend, slot)


@given(ADDRESSES)
def test_a_reverse_row_comes_apart_again(frontend):
    assert frontend_codec.reverse_nat_frontend(frontend_codec.reverse_nat_value(frontend)) == frontend


@given(st.integers(1, 65535), st.integers(1, (1 << 20) - 1))
def test_an_affinity_key_comes_apart_again(service, backend):
    assert frontend_codec.affinity_match_ids(frontend_codec.affinity_match_key(service, backend)) == (service, backend)


def test_what_is_read_of_the_values_of_slots():
    rows = frontend_codec.encode(
        svc(
            *(be(7) for _ in range(0x102)),
            unselectable=(be(9), be(0x10203)),
            session_affinity=True,
            algorithm=Algorithm.MAGLEV,
        )
    )
    master, last = rows.slots[0], rows.slots[0x104]
    assert frontend_codec.split_target(master) == (2, 10800)
    assert frontend_codec.selectable_count(master) == 0x102
    assert frontend_codec.flags_of(master) == frontend_codec.flags_of(last) == 0x2064
    assert frontend_codec.service_id_of(master) == frontend_codec.service_id_of(last) == 0x102
    assert frontend_codec.backend_id_of(last) == 0x10203
    assert rows.backend_ids() == {7, 9, 0x10203}


def test_entries_of_the_service_map_are_the_master_and_the_slots():
    one = svc(be(7), be(8), unselectable=(be(9),), slotless=(be(10),))
    assert frontend_codec.entry_count(one) == len(frontend_codec.encode(one).slots) == 4


def test_a_frontend_has_a_table_made_or_read():
    rows = frontend_codec.FrontendEntries
    assert [each.has_table for each in (rows(1, {}), rows(1, {}, members=((1, 1, b""),)), rows(1, {}, table=b"x"))] == [
        False, True, True,
    ]  # fmt: skip


def test_the_smallest_weight_has_a_share_of_the_table():
    one, idle = be(1, "10.0.0.1:1", weight=1), be(3, "10.0.0.3:1", weight=0)
    members = frontend_codec.encode(svc(one, idle, algorithm=Algorithm.MAGLEV)).members
    assert [(ident, weight) for ident, weight, _ in members] == [(1, 1)]


@pytest.mark.parametrize("text", ["10.96.0.1:80", "[fd00::8080:8080:8080:8080]:32896"])
def test_a_reverse_row_tells_whether_all_endpoints_are_elsewhere(text):
    for said in (False, True):
        row = frontend_codec.reverse_nat_value(L3n4Addr.parse(text), no_local_backend=said)
        assert frontend_codec.has_no_local_backend(row) is said
    assert frontend_codec.has_no_local_backend(b"") is False


@pytest.mark.parametrize("text", ["10.0.0.0/8", "fd00::/7"])
def test_a_source_range_comes_apart_again(text):
    key = frontend_codec.source_range_key(0x102, CIDR.parse(text))
    assert frontend_codec.source_range_of(key) == (0x102, CIDR.parse(text))
