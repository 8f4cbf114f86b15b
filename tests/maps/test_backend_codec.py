"""Bytes of backend rows and path records, against Cilium's headers and docs/datapath.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps import backend_codec, prefilter
from lbagent.maps.layout import PathL4
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.extra_snat_sources import ExtraSnatAddress
from lbagent.model.path_info import PathInfo
from tests.maps.addresses import ADDRESSES


def be(ident: int, text: str = "10.244.1.1:8080", **more) -> Backend:
    return Backend(ident, L3n4Addr.parse(text), **more)


def test_a_backend_row():
    value = backend_codec.backend_value(L3n4Addr.parse("10.244.1.7:8080/UDP"), BackendState.QUARANTINED)
    assert value == bytes((10, 244, 1, 7, 0x1F, 0x90, 17, 2, 0, 0, 0, 0))
    assert len(backend_codec.backend_value(L3n4Addr.parse("[fd00::1]:80"), BackendState.ACTIVE)) == 24


def test_path_records():
    info = PathInfo(bytes((192, 168, 0, 1)), 0x123, 1500)
    record = backend_codec.path_value(be(1, "10.244.1.7:8080/UDP"), info, 9, selectable=True)
    assert record == bytes((10, 244, 1, 7, 192, 168, 0, 1, 0x1F, 0x90, 9, 1 | 2 | 16, 0x23, 1, 0xDC, 5))
    local = backend_codec.path_value(be(1), PathInfo(local=True, host=True), 255, selectable=False)
    assert local == bytes((10, 244, 1, 1, 0, 0, 0, 0, 0x1F, 0x90, 255, 1 | 4 | 8, 0, 0, 0, 0))
    six = backend_codec.path_value(be(1, "[fd00::1]:80"), PathInfo(b"\xfe" * 16, 1, 2), 3, selectable=False)
    assert six == b"\xfd" + bytes(14) + b"\1" + b"\xfe" * 16 + bytes((0, 80, 3, 1, 1, 0, 2, 0)) + bytes(24)


@pytest.mark.parametrize("text", ["10.0.0.1:80", "[fd00::1]:80"])
def test_a_source_address_of_the_other_family_is_none(text):
    other = b"\1" * (16 if text[0] == "1" else 4)
    path = backend_codec.path_of(backend_codec.path_value(be(1, text), PathInfo(other), 0, selectable=True))
    assert set(path.snat) == {0}


@pytest.mark.parametrize(("gen", "after"), [(0, 1), (7, 8), (255, 0)])
@pytest.mark.parametrize("text", ["10.0.0.1:80", "[fd00::1]:80"])
def test_the_record_of_a_gone_backend_has_the_next_generation(text, gen, after):
    record = backend_codec.path_value(be(1, text), PathInfo(b"", 5, 1500, local=True), gen, selectable=True)
    path = backend_codec.path_of(backend_codec.path_tombstone(record))
    assert (path.gen, path.flags, path.live) == (after, 0, False)
    assert len(backend_codec.path_tombstone(record)) == len(record)


@given(ADDRESSES, st.sampled_from([s for s in BackendState if s is not BackendState.INVALID]))
def test_a_backend_row_comes_apart_again(address, state):
    address = address.with_scope(type(address.scope)(0))
    assert backend_codec.backend_of(backend_codec.backend_value(address, state)) == (address, state)


@pytest.mark.parametrize(
    ("flags", "keeps"),
    [
        (0, False),
        (1, False),
        (4, False),
        (5, True),
        (64, False),
        (65, True),
        (69, True),
        (3, False),
        (128, False),
        (129, True),
    ],
)
def test_only_a_live_record_may_keep_clients(flags, keeps):
    """1 live, 2 selectable, 4 local, 64 was local, 128 pods keep their address."""
    assert backend_codec.may_keep_client(flags) is keeps


EXTRA_SNAT = {
    # address, source, port big-endian, generation, flags, next hop with the number above bit 12, MTU
    "10.244.1.7:8080/UDP": (
        bytes((10, 244, 1, 7, 192, 168, 0, 9, 0x1F, 0x90, 8)),
        bytes((0x23, 0x31, 0xDC, 5)),
        bytes((192, 168, 0, 9)),
    ),
    "[fd00::1]:8080/UDP": (
        b"\xfd" + bytes(14) + b"\1" + b"\xfe" * 16 + bytes((0x1F, 0x90, 8)),
        bytes((0x23, 0x31, 0xDC, 5)) + bytes(24),
        b"\xfe" * 16,
    ),
}


@pytest.mark.parametrize(("present", "flags"), [(True, 1 | 2 | 16), (False, 1 | 16)])
@pytest.mark.parametrize("text", EXTRA_SNAT)
def test_the_record_of_a_extra_snat_source_address(text, present, flags):
    """It is neither local nor the node's own, and no new flow takes an address that is not there."""
    before, after, source = EXTRA_SNAT[text]
    info = PathInfo(b"\1" * len(source), 0x123, 1500, local=True, host=True)
    first = backend_codec.path_value(be(1, text), info, 9, selectable=True)
    record = backend_codec.extra_snat_value(first, ExtraSnatAddress(3, source, present), 8)
    assert record == before + bytes((flags,)) + after
    found = backend_codec.path_of(record)
    assert (found.extra_snat, found.nexthop, found.mtu, found.snat, found.protocol) == (
        3,
        0x123,
        1500,
        source,
        PathL4.UDP,
    )
    assert (backend_codec.extra_snat_number(first), backend_codec.extra_snat_number(record)) == (0, 3)
    gone = backend_codec.path_tombstone(record)
    assert backend_codec.extra_snat_number(gone) == 3
    assert gone == before[:-1] + bytes((9, 0, 0, 0x30, 0, 0)) + after[4:]


@pytest.mark.parametrize(("keeps", "flag"), [(False, 64), (True, 128)])
def test_no_flow_of_a_extra_snat_record_keeps_its_client(keeps, flag):
    first = backend_codec.path_value(be(1), PathInfo(keeps_pod=keeps), 9, selectable=True, was_local=True)
    assert first[11] == 1 | 2 | flag
    assert backend_codec.extra_snat_value(first, ExtraSnatAddress(1, bytes(4)), 9)[11] == 1 | 2


@pytest.mark.parametrize(
    ("local", "keeps", "was", "flag"),
    [
        (True, False, True, 4), (True, False, False, 4), (False, False, True, 64), (False, False, False, 0),
        (False, True, False, 128), (False, True, True, 128),
    ],
)  # fmt: skip
def test_what_keeps_clients_did_not_only_keep_them_once(local, keeps, was, flag):
    info = PathInfo(local=local, keeps_pod=keeps)
    record = backend_codec.path_value(be(1), info, 0, selectable=False, was_local=was)
    assert record[11] == 1 | flag


@pytest.mark.parametrize(("word", "bits"), [("TCP", 2), ("UDP", 3)])
def test_bits_of_a_backend_that_pods_keep_their_address_to(word, bits):
    """The prefilter matches its replies, and packets sent to it directly."""
    record = backend_codec.path_value(be(1, f"10.0.0.1:80/{word}"), PathInfo(keeps_pod=True), 0, selectable=True)
    address = bytes((10, 0, 0, 1))
    found = (prefilter.source_bit(address), prefilter.direct_bit(address), prefilter.datagram_bit(address))[:bits]
    assert backend_codec.filter_bits(record) == found
    without = backend_codec.path_value(be(1, f"10.0.0.1:80/{word}"), PathInfo(), 0, selectable=True)
    assert backend_codec.filter_bits(without) == ()


@pytest.mark.parametrize(("word", "protocol"), [("TCP", PathL4.TCP), ("UDP", PathL4.UDP), ("SCTP", PathL4.SCTP)])
def test_a_path_tells_the_protocol(word, protocol):
    record = backend_codec.path_value(
        be(1, f"10.0.0.1:80/{word}"), PathInfo(local=True), 0, selectable=True, was_local=True
    )
    assert backend_codec.path_of(record).protocol is protocol


PATHS = st.builds(
    PathInfo, local=st.booleans(), host=st.booleans(), keeps_pod=st.booleans(), snat=st.just(bytes((10, 0, 0, 9)))
)


@given(st.lists(st.tuples(ADDRESSES, PATHS, st.booleans(), st.booleans(), st.integers(0, 9)), max_size=30))
def test_bits_and_extra_snat_records_of_many_are_those_of_each(found):
    for size in (16, 64):
        records = []
        for address, info, was_local, is_gone, number in found:
            record = backend_codec.path_value(Backend(1, address), info, 0, selectable=True, was_local=was_local)
            if number:
                record = backend_codec.extra_snat_value(
                    record, ExtraSnatAddress(number, bytes(len(address.address))), 0
                )
            records.append(backend_codec.path_tombstone(record) if is_gone else record)
        records = [record for record in records if len(record) == size]
        joined = b"".join(records)
        bits = [bit for record in records for bit in backend_codec.filter_bits(record)]
        assert sorted(backend_codec.filter_bits_of_each(joined, size)) == sorted(bits)
        assert set(backend_codec.filter_bits_of_each(joined, size, once=True)) == set(bits)
        extra_snat = sum(backend_codec.path_of(r).live and backend_codec.extra_snat_number(r) > 0 for r in records)
        assert backend_codec.extra_snat_count(joined, size) == extra_snat


INFOS = (PathInfo(bytes(4), 1, 1500), PathInfo(bytes((10, 0, 0, 9)), 2, 1400, keeps_pod=True), PathInfo(local=True))
ASKED = st.tuples(
    st.sampled_from(["10.1.0.1:80", "10.1.0.2:80/UDP", "10.1.0.1:81", "[fd00::1]:80", "[fd00::2]:80"]),
    st.sampled_from(INFOS),
    st.integers(0, 2),
    st.booleans(),
)


STATES = [(BackendState.ACTIVE, True), (BackendState.ACTIVE, False), (BackendState.QUARANTINED, False)]
TEXTS = ["10.1.0.1:80", "10.1.0.2:80", "10.1.0.2:80/UDP", "10.1.0.2:81", "10.1.0.2@7:80"]


@given(st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(INFOS), st.sampled_from(STATES)), max_size=40))
def test_entries_of_many_new_backends_are_those_of_each(asked):
    backends = [(be(1, text), info, state) for text, info, state in asked]
    rows, records = backend_codec.new_entries(backend_codec.PathRecords(), backends)
    assert rows == [backend_codec.backend_value(backend.address, state) for backend, _, (state, _) in backends]
    assert records == [
        backend_codec.path_value(backend, info, 0, selectable=selectable) for backend, info, (_, selectable) in backends
    ]


@given(st.lists(ASKED, max_size=40))
def test_records_that_are_made_alike_are_those_made_one_by_one(asked):
    records = backend_codec.PathRecords()
    for text, info, gen, selectable in asked:
        expected = backend_codec.path_value(be(1, text), info, gen, selectable=selectable)
        assert records.make(be(1, text), info, gen, selectable=selectable) == expected
