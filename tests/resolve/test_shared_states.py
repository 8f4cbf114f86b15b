"""Owners of a backend, its state, and the owners to build again after a change; frontends in the order of their objects."""

from __future__ import annotations

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC
from lbagent.model.state import StateDelta
from lbagent.objects.records import Origin
from lbagent.resolve.backend_states import SharedStates
from lbagent.resolve.frontend_list import FrontendList

ACTIVE, TERMINATING = BackendState.ACTIVE, BackendState.TERMINATING
QUARANTINED, MAINTENANCE = BackendState.QUARANTINED, BackendState.MAINTENANCE
X, Y, Z = (L3n4Addr.parse(f"10.0.0.{number}:80") for number in (1, 2, 3))


def row(number: int, *backends: Backend, **groups: tuple[Backend, ...]) -> SVC:
    return SVC(L3n4Addr.parse(f"10.96.0.{number}:80"), selectable=backends, **groups)


def be(address: L3n4Addr, state: BackendState = ACTIVE) -> Backend:
    return Backend(address=address, state=state)


def states(rows: tuple[SVC, ...]) -> list[BackendState]:
    return [backend.state for svc in rows for backend in svc.backends]


def test_the_most_alive_of_all_states_is_shared() -> None:
    shared = SharedStates()
    one, two, three = (row(1, be(X, TERMINATING)),), (row(2, unselectable=(be(X, QUARANTINED),)),), (row(3, be(X)),)
    assert shared.update("one", one) == (set(), set())
    assert shared.with_shared_states("one", one)[0] == one[0]
    assert shared.update("two", two) == ({"one"}, set())
    assert shared.update("three", three) == ({"one", "two"}, set())
    for owner, rows in (("one", one), ("two", two), ("three", three)):
        assert states(shared.with_shared_states(owner, rows)) == [ACTIVE]
    assert shared.update("three", ()) == ({"one", "two"}, set())
    assert states(shared.with_shared_states("two", two)) == [TERMINATING]
    assert shared.update("one", ()) == ({"two"}, set())
    assert states(shared.with_shared_states("two", two)) == [QUARANTINED]
    assert shared.has(X)
    assert shared.update("two", ()) == (set(), set())
    assert not shared.has(X)


def test_rows_of_one_owner_differ_until_another_has_the_backend() -> None:
    shared = SharedStates()
    rows = (row(1, be(X)), row(2, unselectable=(be(X, QUARANTINED),)))
    shared.update("one", rows)
    assert shared.with_shared_states("one", rows) is rows
    shared.update("two", (row(3, be(X)),))
    assert states(shared.with_shared_states("one", rows)) == [ACTIVE, ACTIVE]
    shared.update("two", ())
    assert shared.with_shared_states("one", rows) is rows


def test_who_says_the_same_again_touches_those_it_shares_with_once_each() -> None:
    shared = SharedStates()
    for owner in ("one", "two", "three"):
        shared.update(owner, (row(1, be(X), be(Y)),))
    assert shared.update("two", (row(1, be(X), be(Y)),)) == ({"one", "three"}, set())
    for owner, others in (("two", {"one", "three"}), ("three", {"one"}), ("one", set())):
        assert shared.update(owner, ()) == (others, set())
    assert not shared.has(X)


def test_an_owner_has_a_backend_once_however_often_it_says_so() -> None:
    shared = SharedStates()
    rows = (row(1, be(X), be(Y)),)
    for owner in ("one", "two", "two", "one", "two"):
        shared.update(owner, rows)
    assert shared.update("one", ()) == ({"two"}, set())
    assert shared.with_shared_states("two", rows) is rows, "it is the only one left"
    assert shared.update("two", (row(1, be(X)),)) == (set(), set())
    assert (shared.has(X), shared.has(Y)) == (True, False)
    shared.update("two", ())
    assert not shared.has(X)
    assert shared.update("one", rows) == (set(), set())


def test_an_owner_that_keeps_a_backend_does_not_leave_it() -> None:
    """Owners that share it are built again; a backend with one owner concerns no other."""
    shared = SharedStates()
    shared.update("one", (row(1, be(X)),))
    shared.update("two", (row(2, be(X), be(Y)),))
    assert shared.update("two", (row(2, be(X), be(Z)),)) == ({"one"}, set())
    assert [shared.has(each) for each in (X, Y, Z)] == [True, False, True]
    other = (row(3, be(X, QUARANTINED)),)
    assert shared.update("three", other) == ({"one", "two"}, set())
    assert states(shared.with_shared_states("three", other)) == [ACTIVE]


def test_a_state_that_is_no_more_its_own_is_forgotten() -> None:
    shared = SharedStates()
    shared.update("one", (row(1, be(X, MAINTENANCE)),))
    shared.update("one", (row(1, be(X)),))
    other = (row(2, be(X, QUARANTINED)),)
    shared.update("two", other)
    assert states(shared.with_shared_states("two", other)) == [ACTIVE]
    shared.update("one", (row(1, be(Y)),))
    assert states(shared.with_shared_states("two", other)) == [QUARANTINED]


def test_rows_without_a_shared_state_are_the_same_object() -> None:
    shared = SharedStates()
    rows = (row(1, be(X), be(Y)),)
    shared.update("one", rows)
    assert shared.with_shared_states("one", rows) is rows


def test_of_two_rows_of_one_owner_the_more_alive_counts() -> None:
    shared = SharedStates()
    rows = (row(1, be(X, QUARANTINED)), row(2, be(X, TERMINATING)), row(3, be(X, MAINTENANCE)))
    shared.update("one", rows)
    assert states(shared.with_shared_states("one", rows)) == [TERMINATING] * 3


def test_who_filtered_a_backend_out_is_told_when_it_has_a_row() -> None:
    shared = SharedStates()
    assert shared.update("one", (), [X, Y]) == (set(), set())
    assert shared.update("two", (), [X]) == (set(), set())
    assert shared.update("three", (row(3, be(X)),)) == (set(), {"one", "two"})
    assert shared.update("three", (row(3, be(X)),)) == (set(), set()), "it has the row still"
    assert shared.update("two", (), [X]) == (set(), {"two"}), "the row was there already"
    shared.update("one", (), [])
    shared.update("three", ())
    shared.update("two", ())
    assert shared.update("three", (row(3, be(X), be(Y)),)) == (set(), set()), "no owner waits any more"
    assert shared.update("one", (row(1, be(X)),), [X]) == ({"three"}, set()), "it has it itself"


# --- rows in order ---


def place(number: int) -> Origin:
    return Origin("f", number)


def test_rows_are_in_the_order_of_their_objects() -> None:
    rows = FrontendList()
    first, second, third = row(1), row(2), row(3)
    for owner, number, svc in (("c", 3, third), ("a", 1, first), ("b", 2, second)):
        rows.place(owner, place(number))
        rows.set_frontends(owner, (svc,))
    assert list(rows.owners()) == ["a", "b", "c"]
    assert rows.state(1).services == (first, second, third)
    rows.place("a", place(9))
    assert rows.state(2).services == (second, third, first)
    rows.place("b", None)
    rows.set_frontends("b", (second,))
    assert rows.state(3).services == (third, first)
    assert list(rows.owners()) == ["c", "a"]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_change_of_some_rows_says_what_stayed(count: int) -> None:
    rows = FrontendList()
    for number in range(1, 6):
        rows.place(str(number), place(number))
        rows.set_frontends(str(number), (row(number), row(number + 100)))
    before = rows.state(1)
    assert before.delta is None, "owners came"
    new = tuple(row(3 + 50 * turn, be(X)) for turn in range(count))
    rows.set_frontends("3", new)
    after = rows.state(2)
    assert after.services == (*before.services[:4], *new, *before.services[6:])
    assert after.delta is not None
    assert (after.delta.before, after.delta.after) == (before.services, after.services)
    assert after.delta.before is before.services
    assert after.delta.after is after.services
    assert (after.delta.prefix, after.delta.suffix) == (4, 4)
    rows.set_frontends("4", (row(4, be(Y)),))
    rows.set_frontends("2", (row(2, be(Y)),))
    last = rows.state(3)
    assert last.services == (row(1), row(101), row(2, be(Y)), *new, row(4, be(Y)), row(5), row(105))
    assert last.delta is not None
    assert (last.delta.prefix, last.delta.suffix) == (2, 2)
    assert rows.state(4).services is last.services, "nothing changed"


def test_rows_of_nothing_are_none_and_stay_so() -> None:
    rows = FrontendList()
    for generation in (1, 2):
        state = rows.state(generation)
        assert (state.services, state.delta) == ((), StateDelta((), (), 0, 0))


def test_what_is_said_again_changes_nothing() -> None:
    rows = FrontendList()
    for number in (1, 2):
        rows.place(str(number), place(number))
        rows.set_frontends(str(number), (row(number, be(X)),))
    before = rows.state(1)
    rows.place("1", place(1))
    rows.set_frontends("1", (row(1, be(X)),))
    again = rows.state(2)
    assert again.services is before.services
    assert again.delta == StateDelta(before.services, before.services, 0, 2)


def test_one_owner_may_get_as_many_rows_as_all_had() -> None:
    rows = FrontendList()
    for number in (1, 2):
        rows.place(str(number), place(number))
        rows.set_frontends(str(number), (row(number),))
    rows.state(1)
    rows.set_frontends("1", (row(1), row(3)))
    rows.state(2)
    rows.set_frontends("2", (row(2, be(X)),))
    after = rows.state(3)
    assert after.services == (row(1), row(3), row(2, be(X)))
    assert after.delta is not None
    assert (after.delta.prefix, after.delta.suffix) == (2, 0)


def test_a_row_that_is_equal_stays_the_object_it_was() -> None:
    rows = FrontendList()
    rows.place("a", place(1))
    rows.set_frontends("a", (row(1, be(X)), row(2)))
    one, _ = rows.state(1).services
    rows.set_frontends("a", (row(1, be(X)), row(2, be(Y))))
    assert rows.state(2).services[0] is one
