"""Ids: monotonic, restored, not reused at once, and stable while one service of many changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.ids import IdAllocator, IdAssigner, IdsExhausted, assign_ids
from lbagent.model.service import SVC
from lbagent.model.state import State


def _frontend(number: int) -> L3n4Addr:
    return L3n4Addr(bytes([10, 96, 0, number]), 80)


def _svc(number: int, *backends: int, **more: object) -> SVC:
    members = tuple(Backend(address=L3n4Addr(bytes([10, 0, 0, b]), 80)) for b in backends)
    return SVC(_frontend(number), selectable=members, **more)  # type: ignore[arg-type]


def _assigner(limit: int = 100) -> IdAssigner:
    return IdAssigner(IdAllocator(limit=limit), IdAllocator(limit=limit))


def test_monotonic_and_stable() -> None:
    """From 1 upwards; a second call returns the same."""
    ids: IdAllocator[str] = IdAllocator()
    assert [ids.allocate(key) for key in "abca"] == [1, 2, 3, 1]
    assert len(ids) == 3


def test_a_released_id_rests() -> None:
    """A released id is reused only after every other id was assigned."""
    ids: IdAllocator[str] = IdAllocator(first=1, limit=5)
    for key in "abc":
        ids.allocate(key)
    ids.release("a")
    ids.release("nobody")
    assert ids.allocate("d") == 4
    assert ids.allocate("e") == 1  # wrapped round


def test_exhausted() -> None:
    """All in use: a clear error, nothing lost."""
    ids: IdAllocator[str] = IdAllocator(first=1, limit=3)
    ids.allocate("a")
    ids.allocate("b")
    with pytest.raises(IdsExhausted, match=r"^all 2 ids are in use, none is left for c; what is served stays$"):
        ids.allocate("c")
    assert ids.allocate("a") == 1


def test_new_ids_below_an_end() -> None:
    """Keys with an id beyond it keep it; with all of the rest in use the advice is that of the end."""
    ids: IdAllocator[str] = IdAllocator(first=1, limit=10)
    ids.restore([("old", 7), ("low", 1)])
    ids.give_below(4, "buy more")
    assert [ids.allocate(key) for key in ("a", "b", "old")] == [2, 3, 7]
    with pytest.raises(IdsExhausted, match="all 3 ids are in use, none is left for c; buy more"):
        ids.allocate("c")
    ids.release("low")
    assert ids.allocate("c") == 1
    ids.give_below(1 << 20, "")
    assert ids.allocate("d") == 4


def test_restore() -> None:
    """Ids of the maps stay; new ones start after the highest; invalid pairs are skipped."""
    ids: IdAllocator[str] = IdAllocator(first=1, limit=100)
    ids.restore([("a", 7), ("b", 3), ("c", 7), ("d", 0), ("e", 100), ("a", 9)])
    assert (ids.get("a"), ids.get("b"), ids.get("c"), ids.get("d")) == (7, 3, None, None)
    assert ids.allocate("c") == 8


GROUPS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), max_size=8)), max_size=20)


@given(st.dictionaries(st.integers(0, 30), st.integers(1, 39), max_size=6), GROUPS)
def test_ids_of_many_keys_are_those_of_each(restored: dict[int, int], steps: list[tuple[bool, list[int]]]) -> None:
    """Also keys that occur twice, have an id or were restored: the same as single calls, and no id is lost."""
    ids: IdAllocator[int] = IdAllocator(first=1, limit=40)
    ids.restore(restored.items())
    for take, keys in steps:
        before = {key: ids.get(key) for key in keys}
        if take:
            given_out = ids.allocate_each(keys)
            assert given_out == [ids.get(key) for key in keys]
            assert all(old is None or old == ids.get(key) for key, old in before.items())
        else:
            for key in keys:
                ids.release(key)
        in_use = [ids.get(key) for key in ids.in_use()]
        assert len(set(in_use)) == len(in_use) == len(ids)
    free = 39 - len(ids)
    assert len({ids.allocate(100 + n) for n in range(free)}) == free, "each free id can be assigned"


def test_ids_of_many_new_keys_follow_each_other() -> None:
    ids: IdAllocator[str] = IdAllocator(first=1, limit=8)
    assert ids.allocate_each("abc") == [1, 2, 3]
    assert ids.allocate_each("cd") == [3, 4]
    ids.release("a")
    assert ids.allocate_each("efgh") == [5, 6, 7, 1], "round the end"
    with pytest.raises(IdsExhausted):
        ids.allocate_each("xy")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=80))
def test_never_two_keys_with_one_id(steps: list[tuple[bool, int]]) -> None:
    """After any allocations and releases, ids in use differ and are in range."""
    ids: IdAllocator[int] = IdAllocator(first=1, limit=10)
    for take, key in steps:
        if take:
            try:
                ids.allocate(key)
            except IdsExhausted:
                assert len(ids) == 9
        else:
            ids.release(key)
        given_out = [ids.get(key) for key in ids.in_use()]
        assert len(set(given_out)) == len(given_out) == len(ids)
        assert all(number is not None and 1 <= number < 10 for number in given_out)


def test_assign_in_state_order() -> None:
    """Services in State order, backends in order of first use, wildcard rows 0."""
    state = State(1, (_svc(9, 5, 2), replace(_svc(9), wildcard=True), _svc(1, 2, 1)))
    out = assign_ids(state, IdAllocator(), IdAllocator())
    assert [svc.id for svc in out.services] == [1, 0, 2]
    assert [[backend.id for backend in svc.backends] for svc in out.services] == [[1, 2], [], [2, 3]]
    assert out.generation == 1
    assert [svc.id for svc in state.services] == [0, 0, 0]


def test_assigner_keeps_what_did_not_change() -> None:
    """Unchanged SVC objects return the same objects again; the changed one keeps its id."""
    ids = _assigner()
    one, two = _svc(1, 1), _svc(2, 2)
    first = ids.assign(State(1, (one, two)))
    second = ids.assign(State(2, (one, _svc(2, 2, 3))))
    assert second.services[0] is first.services[0]
    assert second.services[1].id == 2
    assert [backend.id for backend in second.services[1].backends] == [2, 3]


def test_assigner_releases_what_is_not_used() -> None:
    """A frontend and a backend that are gone free their ids; a shared backend stays until the last user goes."""
    ids = _assigner()
    ids.assign(State(1, (_svc(1, 1, 2), _svc(2, 2))))
    state = ids.assign(State(2, (_svc(2, 2),)))
    assert (len(ids.service_ids), len(ids.backend_ids)) == (1, 1)
    assert (state.services[0].id, state.services[0].backends[0].id) == (2, 2)
    state = ids.assign(State(3, (_svc(1, 1),)))
    assert (state.services[0].id, state.services[0].backends[0].id) == (3, 3)


def test_assigner_leaves_out_what_finds_no_id() -> None:
    """A service without room is reported and left out, without ids; the others are served."""
    ids = IdAssigner(IdAllocator(limit=100), IdAllocator(limit=3))
    state = ids.assign(State(1, (_svc(1, 1), _svc(2, 2, 3), _svc(3, 1))))
    assert [svc.frontend for svc in state.services] == [_frontend(1), _frontend(3)]
    assert [frontend for frontend, _ in ids.errors] == [_frontend(2)]
    assert (len(ids.service_ids), len(ids.backend_ids)) == (2, 1)
    with pytest.raises(IdsExhausted):
        assign_ids(State(1, (_svc(1, 1, 2, 3),)), IdAllocator(), IdAllocator(limit=3))


def test_what_finds_no_id_takes_none_from_the_others() -> None:
    """A backend that another service has keeps its id; one that was in use long ago is as free as a new one."""
    ids = IdAssigner(IdAllocator(limit=100), IdAllocator(limit=3))
    ids.assign(State(1, (_svc(1, 1), _svc(2, 2))))
    shared = L3n4Addr(bytes([10, 0, 0, 1]), 80)
    state = ids.assign(State(2, (_svc(1, 1), _svc(3, 1, 2, 3))))
    assert [svc.frontend for svc in state.services] == [_frontend(1)]
    assert (ids.backend_ids.in_use(), ids.backend_ids.get(shared)) == ([shared], 1)
    ids.assign(State(3, (_svc(1, 1), _svc(5, 2, 8, 9))))
    assert ids.backend_ids.in_use() == [shared]
    after = ids.assign(State(4, (_svc(4, 1, 9),)))
    assert ids.errors == []
    assert [backend.id for backend in after.services[0].backends] == [1, 2]


def test_after_a_service_was_left_out_the_next_state_is_whole() -> None:
    """Nothing of it is taken for what both States have in common."""
    ids = IdAssigner(IdAllocator(limit=100), IdAllocator(limit=3))
    one, big, two = _svc(1, 1), _svc(2, 2, 3, 4), _svc(3, 1)
    ids.assign(State(1, (one, big, two)))
    again = ids.assign(State(2, (one, big, two)))
    assert [svc.frontend for svc in again.services] == [_frontend(1), _frontend(3)]
    assert [frontend for frontend, _ in ids.errors] == [_frontend(2)]
    small = _svc(2, 2)
    whole = ids.assign(State(3, (one, small, two)))
    assert [svc.frontend for svc in whole.services] == [_frontend(1), _frontend(2), _frontend(3)]
    assert ids.errors == []


def test_each_group_of_backends_gets_ids() -> None:
    groups = {
        name: (Backend(address=L3n4Addr(bytes([10, 0, 0, number]), 80)),)
        for number, name in enumerate(("selectable", "unselectable", "slotless"), 1)
    }
    (svc,) = _assigner().assign(State(1, (SVC(_frontend(1), **groups),))).services
    found = {name: [(backend.id, backend.address.address[3]) for backend in getattr(svc, name)] for name in groups}
    assert found == {"selectable": [(1, 1)], "unselectable": [(2, 2)], "slotless": [(3, 3)]}


def test_only_the_claimed_ids_stay_in_use() -> None:
    ids: IdAllocator[str] = IdAllocator(limit=4)
    ids.restore([("a", 1), ("b", 2), ("c", 3)])
    assert [ids.allocate(key) for key in ("c", "a")] == [3, 1]
    ids.retire_unclaimed()
    ids.free_retired(lambda _: False)
    assert sorted(ids.in_use()) == ["a", "c"]
    assert ids.allocate("d") == 2
    with pytest.raises(IdsExhausted):
        ids.allocate("e")


def test_restored_ids_nobody_claimed() -> None:
    """They are reserved until they are freed explicitly: sources may still be loading."""
    ids = _assigner()
    ids.service_ids.restore([(_frontend(1), 4), (_frontend(2), 5)])
    ids.backend_ids.restore([(L3n4Addr(bytes([10, 0, 0, 1]), 80), 6), (L3n4Addr(bytes([10, 0, 0, 2]), 80), 9)])
    state = ids.assign(State(1, (_svc(2, 1),)))
    assert (state.services[0].id, state.services[0].backends[0].id) == (5, 6)
    assert (len(ids.service_ids), len(ids.backend_ids)) == (2, 2)
    ids.release_restored()
    assert (len(ids.service_ids), len(ids.backend_ids)) == (1, 1)


ROWS = st.dictionaries(st.integers(1, 8), st.sets(st.integers(1, 6), max_size=4), max_size=8)


@given(st.lists(st.tuples(ROWS, st.randoms()), min_size=1, max_size=8))
def test_assigner_over_any_history(history: list[tuple[dict[int, set[int]], Any]]) -> None:
    """In any order of events: ids differ, stay while in use, and are freed with their last user."""
    assigner = _assigner()
    made: dict[tuple[int, frozenset[int]], SVC] = {}
    before: dict[SVC, SVC] = {}
    ids: dict[L3n4Addr, int] = {}
    for rows, random in history:
        order = list(rows)
        random.shuffle(order)
        services = tuple(
            made.setdefault((number, frozenset(rows[number])), _svc(number, *sorted(rows[number]))) for number in order
        )
        out = assigner.assign(State(1, services))
        assert [svc.frontend for svc in out.services] == [svc.frontend for svc in services]
        now = {svc.frontend: svc.id for svc in out.services}
        assert len(set(now.values())) == len(now) == len(assigner.service_ids)
        assert all(ids[frontend] == number for frontend, number in now.items() if frontend in ids)
        backends = {backend.address: backend.id for svc in out.services for backend in svc.backends}
        assert len(set(backends.values())) == len(backends) == len(assigner.backend_ids)
        assert all(before[old] is new for old, new in zip(services, out.services, strict=True) if old in before)
        ids, before = now, dict(zip(services, out.services, strict=True))


def test_exhausted_ids_say_what_to_raise() -> None:
    ids: IdAllocator[str] = IdAllocator(1, 3, "raise --max-backends")
    ids.allocate("a"), ids.allocate("b")
    with pytest.raises(IdsExhausted) as caught:
        ids.allocate("10.0.0.1:80")
    assert (
        str(caught.value)
        == "all 2 ids are in use, none is left for 10.0.0.1:80; raise --max-backends; what is served stays"
    )


def test_ids_are_looked_for_round_the_end() -> None:
    ids: IdAllocator[str] = IdAllocator(1, 5)
    assert [ids.allocate(key) for key in "abcd"] == [1, 2, 3, 4]
    ids.release("a")
    ids.release("c")
    assert [ids.allocate(key) for key in "ef"] == [1, 3]
    ids.release("e")
    assert ids.allocate("g") == 1, "4 is in use, and 5 is none"


def test_the_assigned_state_says_what_stayed() -> None:
    ids = IdAssigner(IdAllocator(), IdAllocator())
    rows = [SVC(L3n4Addr.parse(f"10.96.0.{number}:80")) for number in range(1, 5)]
    before = ids.assign(State(1, tuple(rows)))
    after = ids.assign(State(2, (rows[0], SVC(L3n4Addr.parse("10.96.0.9:80")), *rows[2:])))
    assert after.delta is not None
    assert (after.delta.prefix, after.delta.suffix) == (1, 2)
    assert after.delta.before is before.services
    assert after.delta.after is after.services
    assert [one is other for one, other in zip(before.services, after.services, strict=True)] == [
        True,
        False,
        True,
        True,
    ]


def test_what_stays_of_a_changed_service_is_the_same_object() -> None:
    """A burst of changes uses no more memory: unchanged backends are not created again, nor is a row without ids."""
    ids = _assigner()
    wildcard = SVC(_frontend(9), wildcard=True)
    first = _svc(1, 1, 2, 3)
    (before, kept) = ids.assign(State(1, (first, wildcard))).services
    assert kept is wildcard
    second = replace(first, selectable=(first.selectable[0], first.selectable[2], _svc(1, 4).selectable[0]))
    (after, _) = ids.assign(State(2, (second, wildcard))).services
    assert after.selectable[0] is before.selectable[0]
    assert after.selectable[1] is before.selectable[2]
    assert [backend.id for backend in after.selectable] == [1, 3, 4]
    (again, _) = ids.assign(State(3, (first, wildcard))).services
    assert [backend.id for backend in again.selectable] == [1, 5, 3], "2 was released"
