"""The Shadow's copy of the prefilter: bits, their users, and which of them can be cleared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr
from lbagent.sync.target.record_array import RecordArray
from lbagent.sync.target.shadow import Shadow
from tests.sync.target.plans import SMALL

NOW = 1000.0  # seconds


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=60))
def test_bits_of_the_filter_are_changed_one_by_one(changes):
    shadow, expected = Shadow(SMALL), set()
    for number, on in changes:
        shadow.set_bit(number, on)
        expected = expected | {number} if on else expected - {number}
    assert {number for number in range(256) if shadow.bit(number)} == expected
    assert list(shadow.set_bits()) == sorted(expected)


def test_a_filter_bit_is_stale_when_its_last_user_goes():
    shadow = Shadow(SMALL)
    for number, by in ((70, 1), (70, 1), (71, 1)):
        shadow.count_filter(number, by)
        shadow.set_bit(number, True)
    shadow.count_filter(70, -1)
    assert shadow.clearable_bits(NOW, 0.0) == []
    shadow.count_filter(70, -1)
    shadow.count_filter(71, -1)
    assert shadow.clearable_bits(NOW, 0.0) == [70, 71]
    shadow.count_filter(71, 1)
    assert shadow.clearable_bits(NOW, 0.0) == [70]
    shadow.set_snat_bits(frozenset((70,)))
    assert shadow.clearable_bits(NOW, 0.0) == [], "an address that the node translates to"
    shadow.set_snat_bits(frozenset())
    assert shadow.clearable_bits(NOW, 0.0) == [70]
    shadow.stale_bits_cleared(NOW)
    assert shadow.clearable_bits(NOW, 0.0) == []
    shadow.mark_stale([70, 71])
    assert shadow.clearable_bits(NOW, 0.0) == [70]


def test_a_stale_bit_lingers():
    """Packets of the longest flow may still come: it is cleared that long after it was first found stale, not before."""
    shadow = Shadow(SMALL)
    shadow.count_filter(70, 1)
    shadow.set_bit(70, True)
    shadow.count_filter(70, -1)
    assert shadow.clearable_bits(NOW, 60.0) == []
    assert shadow.clearable_bits(NOW + 59.0, 60.0) == []
    assert shadow.clearable_bits(NOW + 60.0, 60.0) == [70]


def test_an_address_lingers_from_the_time_the_node_does_not_translate_to_it_any_more():
    shadow = Shadow(SMALL)
    shadow.set_bit(70, True)
    shadow.set_snat_bits(frozenset((70,)))
    shadow.mark_stale([70])
    assert shadow.clearable_bits(NOW, 60.0) == []
    shadow.set_snat_bits(frozenset())
    assert shadow.clearable_bits(NOW + 50.0, 60.0) == []
    assert shadow.clearable_bits(NOW + 61.0, 60.0) == []
    assert shadow.clearable_bits(NOW + 110.0, 60.0) == [70]


def test_a_bit_that_was_never_set_is_not_cleared():
    shadow = Shadow(SMALL)
    shadow.count_filter(70, 1)
    shadow.count_filter(70, -1)
    assert shadow.clearable_bits(NOW, 0.0) == []


def test_what_waits_is_left_out_of_a_plan_and_all_else_is_not():
    one, two, three = (L3n4Addr.parse(f"10.0.0.{number}:80") for number in (1, 2, 3))
    shadow = Shadow(SMALL)
    shadow.invalidate([one, two])
    assert shadow.defer({two, three}) == {two}
    assert shadow.dirty == {one}


def test_records_are_found_in_every_piece_of_memory():
    records = RecordArray(16, 1000)
    for ident in (0, 255, 256, 511, 999):
        records.set(ident, bytes(15) + b"\1")
    assert list(records.used()) == [0, 255, 256, 511, 999]
    records.set_start(256, b"\2\3")
    assert records.get(256) == b"\2\3" + bytes(13) + b"\1"
    records.clear(256)
    assert records.is_clear(256)
    assert not records.is_clear(255)
    assert list(records.used()) == [0, 255, 511, 999]
    assert records.get(1000) == b""
