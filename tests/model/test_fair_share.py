"""Fair shares: small holders get what they want, large ones share the rest, no holder loses an entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.fair_share import allowed_entries, guard_of, water_fill


def test_below_the_guard_each_holder_gets_what_it_wants() -> None:
    assert allowed_entries(100, {"a": 70}, {"a": 75, "b": 5}) == {"a": 75, "b": 5}


def test_a_holder_alone_has_the_whole_table() -> None:
    assert allowed_entries(100, {"a": 85}, {"a": 300}) == {"a": 100}


def test_above_the_guard_a_large_holder_grows_no_further() -> None:
    """80 entries are shared: b and c want 10 each, so that 60 are left for a; the last 20 stay free for b and c."""
    assert allowed_entries(100, {"a": 0, "b": 10}, {"a": 300, "b": 10, "c": 10}) == {"a": 60, "b": 10, "c": 10}


def test_equal_holders_may_fill_a_table() -> None:
    """None of ten wants more than a tenth."""
    wanted = dict.fromkeys("abcdefghij", 10)
    assert allowed_entries(100, {}, wanted) == wanted
    assert allowed_entries(100, {"a": 10}, wanted | {"a": 15}) == wanted, "a wants more than a tenth"


def test_what_a_holder_has_stays() -> None:
    """a was alone and has everything; b gets what is left, later what a frees."""
    assert allowed_entries(100, {"a": 100}, {"a": 100, "b": 10}) == {"a": 100, "b": 0}
    assert allowed_entries(100, {"a": 97}, {"a": 300, "b": 10}) == {"a": 97, "b": 3}


def test_room_that_is_short_goes_to_the_smallest_first() -> None:
    """a has all but 6 entries; c has 1 already, so that b catches up before both grow together."""
    assert allowed_entries(100, {"a": 93, "c": 1}, {"a": 93, "b": 20, "c": 20}) == {"a": 93, "b": 4, "c": 3}


def test_a_limit_for_each_holder() -> None:
    assert allowed_entries(100, {"a": 2, "b": 9}, {"a": 50, "b": 9}, most=5) == {"a": 5, "b": 9}
    assert allowed_entries(100, {}, {"a": 50}, most=5) == {"a": 5}


def test_equal_holders_share_equally() -> None:
    assert water_fill(11, dict.fromkeys("abcd", 0), dict.fromkeys("abcd", 9)) == {"a": 3, "b": 3, "c": 3, "d": 2}


def test_no_capacity_leaves_the_floors() -> None:
    assert water_fill(0, {"a": 2, "b": 0}, {"a": 5, "b": 1}) == {"a": 2, "b": 0}
    assert water_fill(0, {}, {}) == {}


NUMBERS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6)


@given(st.integers(0, 120), NUMBERS, st.sampled_from([0, 10]))
def test_shares_of_any_numbers(limit: int, numbers: dict[str, tuple[int, int]], most: int) -> None:
    """No holder loses, nothing beyond the limit is given, no holder above its share grows while one within its share waits."""
    used = {holder: has for holder, (has, _) in numbers.items()}
    wanted = {holder: has + more for holder, (has, more) in numbers.items()}
    may = allowed_entries(limit, used, wanted, most)
    assert may.keys() == wanted.keys()
    assert all(used[holder] <= may[holder] <= wanted[holder] for holder in wanted)
    assert sum(may.values()) <= max(limit, sum(used.values()))
    asked = {holder: max(used[holder], min(number, most or number)) for holder, number in wanted.items()}
    if sum(asked.values()) <= guard_of(limit):
        assert may == asked
    waiting = [may[holder] for holder in wanted if may[holder] < asked[holder]]
    grown = [may[holder] for holder in wanted if may[holder] > used[holder]]
    if waiting and grown:
        assert max(grown) <= min(waiting) + 1 or (max(grown) <= guard_of(limit) and len(wanted) > 1)


@given(NUMBERS)
def test_water_fill_is_max_min_fair(numbers: dict[str, tuple[int, int]]) -> None:
    """A holder that gets less than it needs gets as much as any other, give or take one entry."""
    targets = {holder: number for holder, (_, number) in numbers.items()}
    capacity = sum(targets.values()) * 2 // 3
    found = water_fill(capacity, dict.fromkeys(targets, 0), targets)
    assert sum(found.values()) == capacity
    level = max(found.values(), default=0)
    assert all(found[holder] >= level - 1 for holder in targets if found[holder] < targets[holder])
