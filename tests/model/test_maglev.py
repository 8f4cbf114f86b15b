"""The Maglev table: balance, weights, stability. Bounds: the issue's 1.5 %, NSDI 2016's balance of one entry."""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.model.address import L3n4Addr
from lbagent.model.maglev import TABLE_SIZES, Member, lookup_table


def _members(count: int, net: int = 0, weight: int = 100) -> list[Member]:
    return [(i + 1, weight, L3n4Addr(bytes([10, net, i >> 8, i & 255]), 8080).hash_key()) for i in range(count)]


def test_sizes_are_cilium_primes() -> None:
    """All supported sizes are primes, the default among them."""
    assert TABLE_SIZES == (251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071)
    assert all(all(size % i for i in range(2, int(size**0.5) + 1)) for size in TABLE_SIZES)
    with pytest.raises(ValueError, match="16381"):
        lookup_table(_members(2), 16384)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1000])
def test_equal_weights_differ_by_one(count: int) -> None:
    """Each backend gets size/count entries, rounded up or down."""
    table = lookup_table(_members(count))
    shares = Counter(table)
    assert len(table) == 16381
    assert len(shares) == count
    assert set(shares.values()) <= {16381 // count, 16381 // count + 1}


def test_two_backends_as_in_the_dump_contract() -> None:
    """INNER=[1(8191), 2(8190)]."""
    assert Counter(lookup_table(_members(2))) == {1: 8191, 2: 8190}


def test_weights() -> None:
    """Entries follow the weights; weight 0 gets none, the smallest gets one."""
    one, two, three, four = _members(4)
    table = lookup_table([(*one[:1], 300, *one[2:]), two, (*three[:1], 0, *three[2:]), (*four[:1], 1, *four[2:])])
    shares = Counter(table)
    assert shares[3] == 0
    assert shares[4] >= 1
    assert shares[1] / shares[2] == pytest.approx(3, rel=0.01)


def test_no_backend() -> None:
    """No backend, or none of weight, no table."""
    assert len(lookup_table([])) == 0
    assert len(lookup_table(_members(3, weight=0))) == 0


def test_more_backends_than_places() -> None:
    """Every entry of the table has a backend; nothing fails."""
    assert max(Counter(lookup_table(_members(300), 251)).values()) == 1


@pytest.mark.parametrize("net", [0, 7, 200])
def test_one_of_a_hundred_leaves(net: int) -> None:
    """At most 1.5 % of all entries move beyond those of the backend that left, whichever it is."""
    members = _members(100, net)
    before = lookup_table(members)
    for gone in range(0, 100, 9):
        after = lookup_table(members[:gone] + members[gone + 1 :])
        moved = sum(1 for old, new in zip(before, after, strict=True) if old != new)
        assert moved - before.count(gone + 1) <= 0.015 * len(before)


@given(st.permutations(_members(12)))
def test_any_order_gives_the_same_table(members: list[Member]) -> None:
    """Keys decide, not the order: two nodes build the same table."""
    assert lookup_table(members, 251) == lookup_table(_members(12), 251)


def test_ids_do_not_decide() -> None:
    """Another node gives other ids to the same backends and puts them in the same places."""
    members = _members(10)
    renamed = [(number + 500, weight, key) for number, weight, key in members]
    assert [number + 500 for number in lookup_table(members, 251)] == list(lookup_table(renamed, 251))


def test_a_caller_may_change_its_copy() -> None:
    """The cache returns copies."""
    table = lookup_table(_members(2), 251)
    expected = table[0]
    table[0] = 99
    assert lookup_table(_members(2), 251)[0] == expected


# --- the same table, made slowly: nodes of any version must agree on it ---


def _by_the_book(members: list[Member], size: int) -> list[int]:
    """Every backend examines one place of its permutation a round, in the order of the keys, until it has its quota."""
    members = sorted((member for member in members if member[1]), key=lambda member: member[2])
    first = sorted(members, key=lambda member: -member[1])[:size]
    total = sum(weight for _, weight, _ in first)
    beyond = {key: max(Fraction(0), Fraction(size * weight, total) - 1) for _, weight, key in first}
    scale = (size - len(first)) / sum(beyond.values()) if any(beyond.values()) else Fraction(0)
    shares = {key: scale * share for key, share in beyond.items()}
    quotas = {key: 1 + int(share) for key, share in shares.items()}
    rest = size - sum(quotas.values()) if scale else 0
    for _, _, key in sorted(first, key=lambda member: int(shares[member[2]]) - shares[member[2]])[:rest]:
        quotas[key] += 1
    table, orders = [0] * size, {}
    for key in quotas:
        digest = hashlib.blake2b(key, digest_size=16).digest()
        offset, skip = (int.from_bytes(part, "little") for part in (digest[:8], digest[8:]))
        orders[key] = iter([(offset + turn * (skip % (size - 1) + 1)) % size for turn in range(size)])
    while any(quotas.values()):
        for number, _, key in members:
            if quotas.get(key) and not table[place := next(orders[key])]:
                table[place] = number
                quotas[key] -= 1
    return table


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from((0, 1, 2, 99, 100, 100, 100, 300, 65535)), min_size=1, max_size=20))
def test_a_table_is_what_the_rules_say(weights: list[int]) -> None:
    members = [(number, weight, key) for (number, _, key), weight in zip(_members(len(weights)), weights, strict=True)]
    if any(weights):
        assert list(lookup_table(members, 251)) == _by_the_book(members, 251)


def test_a_weight_too_small_for_its_one_entry_has_no_share_of_the_rest() -> None:
    """Not even of the last entries, which go by remainders."""
    weights = [int(digit, 16) for digit in "23A816722434981A21837984765263795639AA3941396454A5964"]
    members = [(number, weight, key) for (number, _, key), weight in zip(_members(len(weights)), weights, strict=True)]
    assert list(lookup_table(members, 251)) == _by_the_book(members, 251)


@pytest.mark.parametrize("count", [250, 251, 260])
def test_as_many_backends_as_places(count: int) -> None:
    """With more than that, those of the largest weight have one, then those with the smallest keys."""
    members = [(number, 100 + number % 2, key) for number, _, key in _members(count)]
    assert list(lookup_table(members, 251)) == _by_the_book(members, 251)
    chosen = sorted(members, key=lambda member: (-member[1], member[2]))[:251]
    assert set(lookup_table(members, 251)) == {number for number, _, _ in chosen}


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1, 1, 1], [84, 84, 83]),
        ([300, 100], [188, 63]),  # 188.25 and 62.75
        ([65535, 1], [250, 1]),
        ([1, 65535, 65535], [1, 125, 125]),
        ([5], [251]),
    ],
)
def test_shares_by_hand(weights: list[int], shares: list[int]) -> None:
    members = [(number, weight, key) for (number, _, key), weight in zip(_members(len(weights)), weights, strict=True)]
    found = Counter(lookup_table(members, 251))
    assert [found[number] for number, _, _ in members] == shares
