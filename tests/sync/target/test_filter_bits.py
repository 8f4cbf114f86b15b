"""The Shadow's copy of the prefilter: bits, their users, and which of them can be cleared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
