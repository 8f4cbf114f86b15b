"""Exhausted ids: served frontends continue, ids that a change frees belong to it, no namespace takes the share of another."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.id_claims import IdClaim, grant, id_rank
from lbagent.model.ids import SERVICE_ID_LIMIT, IdAllocator, IdAssigner
from lbagent.model.service import SVC, ServiceName, SVCType
from lbagent.model.state import State

GOOD, EVIL = "good", "evil"


def member(number: int, state: BackendState = BackendState.ACTIVE) -> Backend:
    return Backend(address=L3n4Addr(bytes([10, 0, number >> 8, number & 255]), 80), state=state)


def svc(namespace: str, number: int, *backends: int, **more: object) -> SVC:
    """Return a Service with one frontend."""
    frontend = L3n4Addr(bytes([10, 96, number >> 8, number & 255]), 80)
    name = ServiceName(namespace, f"s{number}")
    return SVC(frontend, name=name, **({"selectable": tuple(map(member, backends))} | more))  # type: ignore[arg-type]


def assigner(backend_ids: int, service_ids: int = 1000) -> IdAssigner:
    """Return an assigner with so many ids of each kind."""
    return IdAssigner(IdAllocator(limit=service_ids + 1), IdAllocator(limit=backend_ids + 1))


def assign(ids: IdAssigner, *services: SVC) -> dict[str, list[int]]:
    """Assign a State; return the last bytes of the backends that each Service has with an id."""
    state = ids.assign(State(1, services))
    assert all(each.id for each in state.services)
    assert all(backend.id for each in state.services for backend in each.backends)
    return {each.name.name: [backend.address.address[3] for backend in each.selectable] for each in state.services}


def errors(ids: IdAssigner) -> dict[int, str]:
    return {frontend.address[3]: str(error) for frontend, error in ids.errors}


def test_a_served_frontend_goes_on_with_the_backends_that_have_ids() -> None:
    ids = assigner(4)
    crowd = [svc(EVIL, number, number) for number in (2, 3, 4)]
    assert assign(ids, svc(EVIL, 1, 1), *crowd) == {"s1": [1], "s2": [2], "s3": [3], "s4": [4]}
    assert assign(ids, svc(EVIL, 1, 1, 5, 6), *crowd) == {"s1": [1], "s2": [2], "s3": [3], "s4": [4]}
    (text,) = errors(ids).values()
    assert text == (
        "4 of 4 backend ids are in use: no id for 10.0.0.5:80/TCP, 10.0.0.6:80/TCP;"
        " the frontend continues with 1 of 3 backends"
    )
    assert ids.finds_more is False


def test_an_id_that_a_change_frees_belongs_to_it() -> None:
    """An older Service of the same namespace waits for an id: it gets none while the one that freed it needs one."""
    ids = assigner(2)
    waiting = svc(EVIL, 9, 7, type=SVCType.CLUSTER_IP, created=1.0)
    rolled = {"type": SVCType.EXTERNAL_IPS, "created": 2.0}
    assign(ids, svc(EVIL, 1, 1, **rolled), svc(EVIL, 2, 2, **rolled))
    before = ids.backend_ids.get(member(1).address)
    assign(ids, waiting, svc(EVIL, 1, 1, **rolled), svc(EVIL, 2, 2, **rolled))
    after = svc(EVIL, 1, 3, **rolled)
    assert assign(ids, waiting, after, svc(EVIL, 2, 2, **rolled)) == {"s1": [], "s2": [2]}
    assert errors(ids)[1].endswith("no id for 10.0.0.3:80/TCP; the frontend refuses new flows until one has an id")
    assert ids.finds_more
    assert assign(ids, waiting, after, svc(EVIL, 2, 2, **rolled)) == {"s1": [3], "s2": [2]}
    assert ids.backend_ids.get(member(3).address) == before
    assert errors(ids).keys() == {9}


def test_an_id_that_the_maps_still_name_is_not_given_again() -> None:
    """A write failed: slots may still lead to the backend of before."""
    ids = assigner(2)
    named = True
    ids.backend_id_is_named = lambda _: named
    assign(ids, svc(GOOD, 1, 1), svc(GOOD, 2, 2))
    rolled = (svc(GOOD, 1, 3), svc(GOOD, 2, 2))
    for _ in range(3):
        assert assign(ids, *rolled) == {"s1": [], "s2": [2]}
        assert not ids.finds_more
    named = False
    assert ids.finds_more
    assert assign(ids, *rolled) == {"s1": [3], "s2": [2]}


def test_a_terminating_backend_takes_new_flows_where_no_other_has_an_id() -> None:
    ids = assigner(2)
    assign(ids, svc(GOOD, 1, 1), svc(GOOD, 2, 2))
    resting = (member(1, BackendState.TERMINATING),)
    rolled = svc(GOOD, 1, 3, unselectable=resting)
    assert assign(ids, rolled, svc(GOOD, 2, 2))["s1"] == [1]
    ended = svc(GOOD, 1, 3)
    assign(ids, ended, svc(GOOD, 2, 2))
    assert assign(ids, ended, svc(GOOD, 2, 2)) == {"s1": [3], "s2": [2]}
    assert not ids.errors


def test_a_new_frontend_gets_an_id_for_each_backend_or_none() -> None:
    ids = assigner(4)
    assert assign(ids, svc(GOOD, 1, 1), svc(GOOD, 2, 2, 3, 4, 5), svc(GOOD, 3, 6)) == {"s1": [1], "s3": [6]}
    assert "2 of 4 backend ids are in use: no id for 10.0.0.2:80/TCP" in errors(ids)[2]
    assert "and 1 more" in errors(ids)[2]
    assert errors(ids)[2].endswith("; the new frontend is left out, what is served stays")


def test_backends_of_the_maps_keep_their_ids_while_another_service_lacks_one() -> None:
    """A restart with all ids in use: the first Service of the pass lacks a backend, the others are as they were."""
    ids = assigner(3)
    rows = [svc(GOOD, number, number) for number in (1, 2, 3)]
    ids.service_ids.restore((row.frontend, number) for number, row in enumerate(rows, 1))
    ids.backend_ids.restore((row.selectable[0].address, number) for number, row in enumerate(rows, 1))
    shared = svc(GOOD, 1, 9, 1)
    assert assign(ids, shared, *rows[1:]) == {"s1": [1], "s2": [2], "s3": [3]}
    ids.release_restored()
    assert assign(ids, shared, *rows[1:]) == {"s1": [1], "s2": [2], "s3": [3]}
    assert errors(ids).keys() == {1}


def test_ids_of_an_earlier_agent_become_free_after_every_service_has_its_own() -> None:
    ids = assigner(3)
    ids.backend_ids.restore((member(number).address, number) for number in (1, 2, 3))
    want = (svc(GOOD, 1, 8), svc(GOOD, 2, 2))
    assert assign(ids, *want)["s2"] == [2]
    assert errors(ids).keys() == {1}
    assert not ids.finds_more
    ids.release_restored()
    assert ids.finds_more
    assert assign(ids, *want) == {"s1": [8], "s2": [2]}


def test_a_namespace_above_its_share_leaves_room_for_the_others() -> None:
    """Of 20 ids 16 are shared; good has 2 backends, so that evil gets 14."""
    ids = assigner(20)
    evil = [svc(EVIL, number, number) for number in range(100, 130)]
    found = assign(ids, *evil, svc(GOOD, 1, 1), svc(GOOD, 2, 2))
    assert (len(found), found["s1"], found["s2"]) == (16, [1], [2])
    assert errors(ids)[129].startswith(
        "namespace evil has 14 of 20 backend ids, its fair share while more than 80% are wanted: no id for"
    )
    grown = assign(ids, *evil, svc(GOOD, 1, 1, 3, 4), svc(GOOD, 2, 2, 5))
    assert (len(grown), grown["s1"], grown["s2"]) == (16, [1, 3, 4], [2, 5])


def test_freed_room_goes_to_a_namespace_within_its_share_first() -> None:
    """evil was alone and has all ids. It gives one back and wants 30 more; good gets it."""
    ids = assigner(20)
    evil = [svc(EVIL, number, number) for number in range(100, 150)]
    good = svc(GOOD, 1, 1)
    assert len(assign(ids, *evil)) == 20
    assert "s1" not in assign(ids, *evil, good)
    assign(ids, *evil[1:], good)
    found = assign(ids, *evil[1:], good)
    assert found["s1"] == [1]
    assert len(found) == 20


def test_a_limit_for_the_backends_of_each_namespace() -> None:
    ids = assigner(100)
    ids.max_endpoints_per_namespace = 3
    assert assign(ids, svc(GOOD, 1, 1, 2), svc(GOOD, 2, 2, 3), svc(EVIL, 3, 4), svc(GOOD, 4, 5)) == {
        "s1": [1, 2], "s2": [2, 3], "s3": [4]
    }  # fmt: skip
    assert errors(ids)[4].startswith(
        "namespace good has 3 backends of 3 (--max-endpoints-per-namespace): no id for 10.0.0.5:80/TCP"
    )
    ids.max_endpoints_per_namespace = 2
    rows = (svc(GOOD, 1, 1, 2), svc(GOOD, 2, 2, 3), svc(EVIL, 3, 4))
    assert assign(ids, *rows) == {"s1": [1, 2], "s2": [2, 3], "s3": [4]}, "what is served stays"


def test_service_ids_go_to_cluster_ips_first_then_by_age() -> None:
    """Of five service ids each; the State has the frontends in the order of the names."""
    rows = [
        svc(EVIL, 1, 1, type=SVCType.EXTERNAL_IPS, created=1.0),
        svc(GOOD, 2, 1, type=SVCType.LOAD_BALANCER, created=2.0),
        svc(GOOD, 3, 1, type=SVCType.HOST_PORT, created=1.0),
        svc(GOOD, 4, 1, type=SVCType.NODE_PORT, created=3.0),
        svc(GOOD, 5, 1, type=SVCType.CLUSTER_IP, created=5.0),
        svc(GOOD, 6, 1, type=SVCType.CLUSTER_IP),
        svc(GOOD, 7, 1, type=SVCType.CLUSTER_IP, created=4.0),
        svc(GOOD, 8, 1, type=SVCType.HOST_PORT, created=-1.0),
    ]
    assert [row.name.name for row in sorted(rows, key=id_rank)] == ["s8", "s7", "s5", "s6", "s4", "s2", "s1", "s3"]
    rows = [replace(row, name=ServiceName(GOOD, row.name.name)) for row in rows]
    for count in range(1, 8):
        ids = assigner(10, count)
        given_ids = {each.name.name: each.id for each in ids.assign(State(1, tuple(rows))).services}
        assert given_ids.keys() == {row.name.name for row in sorted(rows, key=id_rank)[:count]}
        assert list(given_ids.values()) == list(range(1, count + 1)), "in the order of the State"
        assert len(ids.errors) == 8 - count


@pytest.mark.long
def test_a_service_with_more_frontends_than_ids_leaves_those_of_others() -> None:
    """65,600 externalIPs of one Service sort first; 20 older Services have their ClusterIPs on a node that starts."""
    port = (member(1),)
    evil = [
        SVC(
            L3n4Addr(bytes([172, 16, number >> 8 & 255, number & 255]), 1 + (number >> 16)),
            name=ServiceName("a-evil", "x"),
            type=SVCType.EXTERNAL_IPS,
            created=1.0,
            selectable=port,
        )
        for number in range(65_600)
    ]
    others = [svc(GOOD, number, number, created=100.0 + number) for number in range(1, 21)]
    ids = IdAssigner(IdAllocator(limit=SERVICE_ID_LIMIT), IdAllocator())
    state = ids.assign(State(1, (*evil, *others)))
    served = {each.frontend for each in state.services}
    assert served >= {each.frontend for each in others}
    assert len(served) + len(ids.errors) == 65_620
    assert len(served) == 65_535 * 4 // 5, "evil gets no more than its share"
    assert "service ids" in str(ids.errors[0][1])


def test_what_one_frontend_cannot_use_others_may() -> None:
    """The new frontend `big` needs more than there is; a namespace of the same rank grows as if it were not there."""
    claims = [IdClaim(ServiceName("b", "big"), tuple(range(100, 150)), whole=True)]
    claims += [IdClaim(ServiceName("a", f"s{number}"), (number,)) for number in range(15)]
    done = grant(claims, 20, 20, {}, {"a": 15, "b": 50}, {})
    assert done.keys == set(range(15))


def test_a_new_frontend_within_its_share_waits_for_ids_that_rest() -> None:
    """An id that a change has just freed makes it fit at the next pass: until then no other namespace takes the room."""
    ids = assigner(12)
    greedy, rolled = range(20, 25), (40, 41, 42, 43)
    assign(ids, svc("b", 1, 20), svc("c", 2, *rolled, 45))
    contents = (svc("b", 1, *greedy), svc("c", 2, *rolled, 44), svc("a", 3, 0, 1, 2))
    assign(ids, *contents)
    assert ids.finds_more
    assert assign(ids, *contents) == {"s1": [20, 21, 22, 23], "s2": [*rolled, 44], "s3": [0, 1, 2]}


# --- any history ---

CAPACITY = 12
NAMESPACES = ("a", "b", "c")
CONTENTS = st.dictionaries(
    st.integers(1, 9), st.frozensets(st.integers(0, 14), min_size=1, max_size=6), min_size=1, max_size=9
)


def namespace_of(number: int) -> str:
    return NAMESPACES[number % 3]


def rows_of(contents: dict[int, frozenset[int]]) -> tuple[SVC, ...]:
    """Return Services whose backends are those of their namespace alone."""
    return tuple(
        svc(namespace_of(number), number, *sorted(20 * (number % 3) + each for each in members))
        for number, members in contents.items()
    )


def held_by(namespace: str, services: Iterable[SVC]) -> set[L3n4Addr]:
    return {each.address for row in services if row.name.namespace == namespace for each in row.backends}


def needs(row: SVC, now: Container[L3n4Addr], numbers: Container[L3n4Addr]) -> int:
    """Return the least number of ids that a frontend can use."""
    return 1 if row.frontend in now else sum(each.address not in numbers for each in row.backends)


@pytest.mark.long
@pytest.mark.parametrize("most", [0, 5])
@settings(max_examples=150, deadline=None)
@given(history=st.lists(CONTENTS, min_size=1, max_size=6))
@example(
    [  # two namespaces wait for three ids each, and three are left
        {1: frozenset({0, 1, 2, 3, 4, 5})},
        {
            3: frozenset({3}),
            2: frozenset({0}),
            1: frozenset({6}),
            8: frozenset({0, 1, 2, 3}),
            4: frozenset({0, 1, 2, 3, 4, 5}),
            6: frozenset({0, 1, 2}),
        },
    ]
)
@example(
    [  # one that is above its share grows last, though two others cannot use their parts
        {1: frozenset({0, 1, 2, 3, 4, 5})},
        {
            5: frozenset({0, 1, 2, 3}),
            1: frozenset({0, 1, 2, 3, 5, 6}),
            6: frozenset({0, 1, 2, 3}),
            4: frozenset({4}),
            2: frozenset({0, 4}),
        },
    ]
)
@example(
    [  # what a namespace below an equal part needs is free at the next pass
        {1: frozenset({0, 1, 2, 3}), 7: frozenset({0, 5, 6, 8})},
        {
            7: frozenset({4}),
            1: frozenset({7}),
            9: frozenset({0}),
            6: frozenset({1, 2, 3, 4}),
            4: frozenset({0, 1, 2, 3, 5, 6}),
            2: frozenset({0, 1, 2, 3}),
        },
    ]
)
def test_any_history_of_full_maps(most: int, history: list[dict[int, frozenset[int]]]) -> None:
    """No served frontend is lost, no id is assigned twice, and no namespace grows beyond its share before the others."""
    ids = assigner(CAPACITY)
    ids.max_endpoints_per_namespace = most
    before: dict[L3n4Addr, SVC] = {}
    for contents in history:
        wanted = rows_of(contents)
        was = {namespace: held_by(namespace, before.values()) for namespace in NAMESPACES}
        for _ in range(3):
            now = {row.frontend: row for row in ids.assign(State(1, wanted)).services}
            numbers = {each.address: each.id for row in now.values() for each in row.backends}
            assert len(set(numbers.values())) == len(numbers) <= CAPACITY
            for row in wanted:
                listed = {each.address for each in row.backends}
                had = before.get(row.frontend)
                got = {each.address for each in now[row.frontend].backends} if row.frontend in now else set()
                assert got <= listed, "what is gone goes"
                if had is not None:
                    assert row.frontend in now, "what is served stays"
                    kept = {each.address: each.id for each in had.backends if each.address in listed}
                    assert kept.items() <= numbers.items()
                    assert kept.keys() <= got
            lacking = {row.name.namespace for row in wanted if row.frontend in {each for each, _ in ids.errors}}
            before = now
        assert not ids.finds_more
        names = {row.name.namespace for row in wanted}
        total = {namespace: len(held_by(namespace, wanted)) for namespace in names}
        within = {namespace for namespace in names if total[namespace] <= CAPACITY // len(names)}
        if not most:
            without = {frontend for frontend, _ in ids.errors}
            waiting = [row for row in wanted if row.frontend in without and row.name.namespace in within]
            for namespace in names - within:
                has = held_by(namespace, now.values())
                grown = len(has) - max(len(was[namespace]), CAPACITY // len(names))
                room = CAPACITY - len(numbers) + grown
                # a new frontend needs an id for each of its backends: what is less than that is of no use to it
                assert grown <= 0 or all(needs(row, now, numbers) > room for row in waiting)
            if sum(total.values()) <= CAPACITY * 4 // 5:
                assert not lacking
        else:
            assert all(len(held_by(namespace, now.values())) <= most for namespace in names)
