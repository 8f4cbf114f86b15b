"""The Shadow's copy of the prefilter: bits, their users, and which of them can be cleared."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps import prefilter
from lbagent.model.address import L3n4Addr, format_ip
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.plan import plan
from lbagent.targets.bpf.record_array import RecordArray
from lbagent.targets.bpf.shadow import Shadow
from tests.targets.bpf.plans import SMALL, SNAT, Node, paths, service

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
    records.set_starts(256, b"\2\3" + bytes(14), 8)
    assert records.get(256) == b"\2\3" + bytes(13) + b"\1"
    records.clear(256)
    assert records.is_clear(256)
    assert not records.is_clear(255)
    assert list(records.used()) == [0, 255, 511, 999]
    assert records.get(1000) == b""


def test_records_are_set_many_at_a_time():
    records = RecordArray(16, 100)
    assert records.end == 0
    records.set(3, b"\1" * 16 + b"\2" * 16)
    assert (records.run(3, 2), records.end) == (b"\1" * 16 + b"\2" * 16, 5)
    records.set_each({9: b"\3" * 16, 7: b"\4" * 16})
    assert (records.get(9), records.get(8), records.get(7), records.end) == (b"\3" * 16, bytes(16), b"\4" * 16, 10)
    records.set_starts(8, b"\5" * 48, 8)
    assert records.run(8, 3) == b"\5" * 8 + bytes(8) + b"\5" * 8 + b"\3" * 8 + b"\5" * 8 + bytes(8)
    assert records.end == 11


def test_words_beside_each_other_are_stored_each_by_itself():
    """Two frontends whose bits lie in words side by side, the second in the first byte of its word."""
    rng = random.Random(1)
    addresses = [bytes((10, *rng.randbytes(3))) for _ in range(20_000)]
    bits = {prefilter.vip_bit(address): address for address in addresses}
    first = next(bit for bit in sorted(bits) if any((bit | 63) + 1 + more in bits for more in range(8)))
    second = next(bit for bit in range((first | 63) + 1, (first | 63) + 9) if bit in bits)
    node = Node()
    texts = [f"{format_ip(bits[bit])}:80" for bit in (first, second)]
    node.serve(*map(service, texts))
    assert {first, second} < set(node.shadow.set_bits())
    node.restart()
    assert {first, second} < set(node.shadow.set_bits())
    node.want(service(texts[1]))
    assert node.sync().complete
    assert first not in set(node.shadow.set_bits())
    assert second in set(node.shadow.set_bits())


def test_an_address_of_the_node_lingers_each_time_it_goes():
    node, bit = Node(), prefilter.direct_bit(SNAT[0])

    def at(now: float, *addresses: bytes) -> bool:
        assert apply(
            plan(node.state, node.shadow, paths, addresses), node.maps, node.shadow, now, linger_s=100
        ).complete
        with node.maps.window("lb_filter", bit >> 3, 1) as view:
            return bool(view[0] >> (bit & 7) & 1)

    assert [at(1000, SNAT[0]), at(1001), at(1050), at(1102)] == [True, True, True, False]
    assert [at(2000, SNAT[0]), at(2001), at(2050), at(2102)] == [True, True, True, False]
