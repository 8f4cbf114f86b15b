"""Times by address: due addresses are returned in order, and an address is due once, at the last time that was set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbagent.announce.announcer import DueTimes

A, B = b"a", b"b"
INF = float("inf")


def test_what_is_due_is_taken_once() -> None:
    due = DueTimes()
    assert due.next_at() == INF
    due.set(B, 2.0)
    due.set(A, 1.0)
    assert due.next_at() == 1.0
    assert due.take(0.9) == []
    assert due.take(2.0) == [A, B]
    assert due.take(9.0) == []


def test_the_last_time_that_was_set_holds() -> None:
    due = DueTimes()
    for at in (3.0, 1.0, 2.0):
        due.set(A, at)
    assert due.next_at() == 2.0
    assert due.take(5.0) == [A]
    due.set(A, 1.0)
    due.set(A, INF)
    assert due.next_at() == INF
    assert due.take(5.0) == []


@given(st.lists(st.tuples(st.sampled_from([A, B, b"c"]), st.sampled_from([1.0, 2.0, 3.0, INF]), st.floats(0, 4))))
def test_it_is_what_a_look_at_all_of_them_would_find(steps: list[tuple[bytes, float, float]]) -> None:
    due, times = DueTimes(), dict[bytes, float]()
    for address, at, now in steps:
        due.set(address, at)
        times[address] = at
        assert due.next_at() == min(times.values())
        found = sorted(each for each, time in times.items() if time <= now)
        assert sorted(due.take(now)) == found
        for each in found:
            times[each] = INF
