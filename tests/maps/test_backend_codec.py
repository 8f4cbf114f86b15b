"""Bytes of backend rows and path records, against Cilium's headers and docs/datapath.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps import backend_codec
from lbagent.maps.lbmaps import PathInfo
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
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
    ("flags", "local"), [(0, False), (1, False), (4, False), (5, True), (64, False), (65, True), (69, True), (3, False)]
)
def test_only_a_live_record_has_local_replies(flags, local):
    """1 live, 2 selectable, 4 local, 64 was local."""
    assert backend_codec.replies_are_local(flags) is local
