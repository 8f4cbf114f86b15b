"""Backends that several services have: rows, records and bits that belong to all of them."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from lbagent.errors import KernelError
from lbagent.maps import backend_codec, prefilter
from lbagent.maps.consistency import check
from lbagent.maps.layout import LB_COUNTER
from lbagent.maps.lbmaps import backend_counter
from lbagent.maps.map_names import family_map
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.targets.bpf.apply import apply
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.plan import plan, plan_paths
from lbagent.targets.bpf.record_array import RecordArray
from lbagent.targets.bpf.steps import Phase
from lbagent.testing.faulty_maps import FaultyMaps
from tests.targets.bpf.plans import (
    ACTIVE,
    MAINTENANCE,
    QUARANTINED,
    SMALL,
    SNAT,
    TERMINATING,
    Node,
    backend,
    backends_of,
    paths,
    service,
    wanted_of,
)
from tests.targets.bpf.test_apply import RefusesFrontend
from tests.targets.bpf.test_plan_order import change

LIVE, SELECTABLE, LOCAL, WAS_LOCAL = 1, 2, 4, 64  # of lb4_path.flags
ADDRESSES = {4: ("10.96.0.{}:80", "10.244.1.{}:8080"), 6: ("[fd00::{}]:80", "[fd00:1::{}]:8080")}


def at(family: int, number: int, *backends, **more):
    return service(ADDRESSES[family][0].format(number), *backends, **more)


def one(family: int, number: int, state=ACTIVE):
    return backend(ADDRESSES[family][1].format(number), state)


def record(node: Node, found) -> bytes:
    """Return the path record of a backend."""
    return node.shadow.paths[found.address.family].get(node.book.backend_ids.get(found.address))


def state(node: Node, found) -> int:
    """Return the state in the row of a backend."""
    row = node.maps.get(
        family_map(found.address.family, "backend"), node.book.backend_ids.get(found.address).to_bytes(4, "little")
    )
    return backend_codec.backend_of(row)[1]


@pytest.mark.parametrize("family", [4, 6])
def test_who_leaves_a_shared_backend_changes_nothing_of_it(family):
    shared, rest = one(family, 2), one(family, 3)
    node = Node()
    node.serve(at(family, 1, shared), at(family, 2, shared, rest))
    before = record(node, shared)
    done = node.serve(at(family, 1, shared), at(family, 2, rest))
    assert record(node, shared) == before
    assert {name for name in done.written if name.endswith(("_path", "_backend"))} == set()
    assert before[backend_codec.FLAGS_AT[len(before)]] & (LIVE | SELECTABLE) == LIVE | SELECTABLE


@pytest.mark.parametrize("family", [4, 6])
def test_the_state_of_a_shared_backend_is_that_of_those_who_stay(family):
    alive, dying, rest = one(family, 2), one(family, 2, TERMINATING), one(family, 3)
    node = Node()
    node.serve(at(family, 1, rest, unselectable=(dying,)), at(family, 2, alive, rest))
    before = record(node, alive)
    flags_at = backend_codec.FLAGS_AT[len(before)]
    change(node, (at(family, 1, rest, unselectable=(dying,)), at(family, 2, rest)))
    after = record(node, alive)
    assert state(node, alive) is TERMINATING
    assert after[flags_at] == before[flags_at] & ~SELECTABLE
    assert after[:flags_at] + after[flags_at + 1 :] == before[:flags_at] + before[flags_at + 1 :]


def rests_for_one_and_leaves_another():
    """Return a node that is to let a backend of two services rest for one and leave the other, the backend, and both services as wanted."""
    shared, dying, rest = one(4, 2), one(4, 2, TERMINATING), one(4, 3)
    node = Node()
    node.serve(at(4, 1, shared, rest), at(4, 2, shared, rest))
    wanted = [at(4, 1, rest, unselectable=(dying,)), at(4, 2, rest)]
    node.want(*wanted)
    return node, shared, wanted


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_backend_that_rests_for_one_and_leaves_another_waits_for_both(stopped):
    """As long as slots of one of them, whose plan failed, give it new flows, its record takes them."""
    node, shared, wanted = rests_for_one_and_leaves_another()
    inner = node.maps
    node.maps = RefusesFrontend(inner, wanted[stopped - 1].frontend.address)
    done = node.sync()
    node.maps = inner
    if stopped == 1:
        assert list(done.failed) == [wanted[0].frontend]
        assert record(node, shared)[11] & SELECTABLE
        assert state(node, shared) is ACTIVE
    assert check(inner) == []
    assert node.sync().complete
    assert check(inner, settled=True) == []
    assert not record(node, shared)[11] & SELECTABLE
    assert state(node, shared) is TERMINATING


class KeepsSlots(FaultyMaps):
    """Deletes no slot, and writes none, of one address."""

    def __init__(self, inner, address: bytes):
        super().__init__(inner)
        self.address = address

    def refuse(self, map_name, keys):
        if map_name == "lb4_service" and any(key.startswith(self.address) for key in keys):
            raise KernelError("update", 12, map_name)

    def put_many(self, map_name, items):
        for done, item in enumerate(items):
            try:
                self.refuse(map_name, [item[0]])
            except KernelError as error:
                error.done = done
                raise
            self.inner.put_many(map_name, [item])

    def delete_many(self, map_name, keys):
        self.refuse(map_name, keys)
        self.inner.delete_many(map_name, keys)


def test_the_record_waits_for_a_service_that_could_not_leave():
    node, shared, wanted = rests_for_one_and_leaves_another()
    inner = node.maps
    node.maps = KeepsSlots(inner, wanted[1].frontend.address)
    assert list(node.sync().failed) == [wanted[1].frontend]
    node.maps = inner
    assert check(inner) == []
    assert record(node, shared)[11] & SELECTABLE, "slots of the second may still give it flows"
    assert node.sync().complete
    assert not record(node, shared)[11] & SELECTABLE


def test_a_backend_that_cannot_be_written_fails_all_that_need_it():
    node = Node()
    wanted = [at(4, number, one(4, 2)) for number in range(1, 5)]
    node.want(*wanted)

    def refuse(_: int, name: str) -> None:
        if name == "lb4_backend":
            raise KernelError("update", 12, name)

    node.maps = FaultyMaps(node.maps, before=refuse)
    assert set(node.sync().failed) == {svc.frontend for svc in wanted}
    assert check(node.maps.inner) == []


def test_a_backend_with_every_state_and_group_goes_with_its_services():
    node = Node()
    node.serve(
        at(
            4,
            1,
            one(4, 2),
            unselectable=(one(4, 3, QUARANTINED), one(4, 4, TERMINATING)),
            slotless=(one(4, 5, MAINTENANCE), one(4, 6)),
        ),
        at(4, 2, one(4, 6), slotless=(one(4, 2),)),
    )
    assert node.shadow.states() == {ACTIVE: 2, QUARANTINED: 1, TERMINATING: 1, MAINTENANCE: 1}
    node.serve(at(4, 2, one(4, 6), slotless=(one(4, 2),)))
    assert node.shadow.states() == {ACTIVE: 2}
    node.serve()
    assert node.shadow.refs == {}
    assert node.maps.items("lb4_backend") == []


@pytest.mark.parametrize("group", ["unselectable", "slotless"])
def test_a_new_frontend_whose_only_backend_rests_is_whole_at_any_moment(group):
    node = Node()
    node.serve()
    change(node, (at(4, 1, **{group: (one(4, 2, QUARANTINED),)}),))
    assert check(node.maps, settled=True) == []


def test_a_backend_comes_to_life_before_slots_give_it_flows():
    dying, alive, rest = one(4, 2, TERMINATING), one(4, 2), one(4, 3)
    node = Node()
    node.serve(at(4, 1, rest, unselectable=(dying,)))
    svc = at(4, 1, rest, alive)
    text = f"{alive.address.address.hex()}:8080/6"
    inner, seen = node.maps, []

    def look(*_) -> None:
        if text in (backends_of(inner, svc.frontend) or ()):
            seen.append(state(node, alive))

    node.want(svc)
    node.maps = FaultyMaps(inner, after=look)
    assert node.sync().complete
    node.maps = inner
    assert set(seen) == {ACTIVE}


def test_another_state_does_not_begin_to_count_anew():
    node = Node()
    node.serve(at(4, 1, one(4, 2), one(4, 3)))
    index = backend_counter(node.book.backend_ids.get(one(4, 2).address))
    with node.maps.window("lb_metrics", 16 * index, 16) as cell:
        cell[:] = LB_COUNTER.pack(3, 300)
    node.serve(at(4, 1, one(4, 3), unselectable=(one(4, 2, TERMINATING),)))
    assert node.maps.counters([index]) == [(3, 300)]


def test_another_way_is_written_before_the_slots():
    """Only a record that takes no new flow any more waits until no slot gives it one."""
    node = Node()
    here = one(4, 2)
    node.serve(at(4, 1, here))
    node.want(at(4, 1, replace(here, node_name="other")))
    ways = {"other": PathInfo(SNAT[0], 77, 1400)}
    steps = plan(node.state, node.shadow, lambda found: ways.get(found.node_name) or paths(found), SNAT).steps
    assert [step.phase for step in steps if step.map == "lb4_path"] == [Phase.PATH_IN]


def moved(_) -> PathInfo:
    return PathInfo(SNAT[0], 77, 1400)


def test_a_way_is_not_written_under_an_id_that_is_another_ones_now():
    node = Node()
    node.serve(at(4, 1, one(4, 2)))
    ident = node.book.backend_ids.get(one(4, 2).address)
    former = replace(one(4, 4), id=ident)
    assert plan_paths(node.shadow, [former], moved).entries == 0


def test_another_way_lets_no_new_flow_in():
    node = Node()
    resting = one(4, 2, QUARANTINED)
    node.serve(at(4, 1, unselectable=(resting,)))
    assert apply(plan_paths(node.shadow, each_backend(node.state), moved), node.maps, node.shadow).entries == 1
    assert record(node, resting)[11] & (LIVE | SELECTABLE) == LIVE
    assert backend_codec.path_of(record(node, resting)).nexthop == 77


def test_a_backend_is_not_taken_for_local_because_another_one_was_under_its_id():
    node = Node()
    node.serve(at(4, 1, one(4, 1)))
    assert record(node, one(4, 1))[11] & LOCAL
    for name in ("lb4_backend", "lb4_service"):
        node.maps.delete_many(name, [key for key, _ in node.maps.items(name)])
    node.restart()  # the record is all that is left of id 1
    node.serve(at(4, 1, one(4, 2)))
    assert node.book.backend_ids.get(one(4, 2).address) == 1
    assert not record(node, one(4, 2))[11] & (LOCAL | WAS_LOCAL)
    assert not node.shadow.bit(prefilter.source_bit(one(4, 2).address.address))
    assert not node.shadow.bit(prefilter.source_bit(one(4, 1).address.address))


def test_the_generation_wraps():
    node = Node()
    node.serve(at(4, 1, one(4, 2)))
    word = record(node, one(4, 2))[8:]
    ident = node.book.backend_ids.get(one(4, 2).address)
    node.maps.store("lb4_path", [(16 * ident + 8, word[:2] + b"\xff" + word[3:])])
    for name in ("lb4_backend", "lb4_service"):
        node.maps.delete_many(name, [key for key, _ in node.maps.items(name)])
    node.restart()
    node.serve(at(4, 1, one(4, 4)))
    assert node.book.backend_ids.get(one(4, 4).address) == ident
    assert backend_codec.path_of(record(node, one(4, 4))).gen == 0


def test_each_backend_is_named_once():
    node = Node()
    node.serve(at(4, 1, one(4, 2), one(4, 3)), at(4, 2, one(4, 3), slotless=(one(4, 4),), unselectable=(one(4, 2),)))
    assert [found.address.address[3] for found in each_backend(node.state)] == [2, 3, 4]


def test_a_small_change_walks_no_array(monkeypatch):
    node = Node()
    node.serve(at(4, 1, one(4, 2)))

    def walked(self):
        raise AssertionError("a walk over all records")

    monkeypatch.setattr(RecordArray, "used", walked)
    node.serve(at(4, 1, one(4, 3)))


def test_a_backend_without_an_id_is_a_mistake_of_ours():
    node = Node()
    state = replace(node.state, services=(at(4, 1, one(4, 2), id=1),))
    with pytest.raises(ValueError, match="backend 10.244.1.2:8080/TCP has no id"):
        plan(state, node.shadow, paths)


def test_the_row_of_a_frontend_says_whether_all_endpoints_are_elsewhere():
    node = Node()
    for elsewhere in (False, True, False):
        node.serve(at(4, 1, no_local_backend=elsewhere))
        ((_, row),) = node.maps.items("lb4_reverse_nat")
        assert bool(row[7] & ~1) is elsewhere


def test_families_have_backends_of_their_own():
    node = Node()
    node.serve(at(4, 1, one(4, 2)), at(6, 1, one(6, 2)))
    assert [len(list(node.shadow.backend_rows[family].used())) for family in Family] == [1, 1]
    node.serve(at(6, 1, one(6, 2)))
    assert [len(list(node.shadow.backend_rows[family].used())) for family in Family] == [0, 1]


def test_what_two_share_is_written_although_a_third_is_refused():
    node = Node(MemoryMaps(dataclasses.replace(SMALL, services=10)))
    wanted = [at(4, 1, *[one(4, n) for n in range(10, 30)]), at(4, 2, one(4, 2)), at(4, 3, one(4, 2))]
    node.want(*wanted)
    assert list(node.sync().failed) == [wanted[0].frontend]
    assert check(node.maps, settled=True) == []
    assert len(node.maps.items("lb4_backend")) == 1


def test_what_only_failed_ones_need_is_not_written():
    node = Node()
    wanted = [at(4, 1, one(4, 2)), at(4, 2, one(4, 2)), at(4, 3, one(4, 3))]
    node.want(*wanted)
    left = [KernelError("update", 12, "lb_metrics")]

    def refuse(number: int, name: str) -> None:
        if (
            name == "lb_metrics" and number == 3 and left
        ):  # the counters of three frontends, then that of the shared backend
            raise left.pop()

    node.maps = FaultyMaps(node.maps, before=refuse)
    done = node.sync()
    assert set(done.failed) == {wanted[0].frontend, wanted[1].frontend}
    assert done.written["lb4_backend"] == 1
    assert done.written["lb4_service"] == 2
    assert node.sync().complete
    assert check(node.maps, settled=True) == []


def test_who_needs_a_backend_gets_it_although_one_that_leaves_it_fails():
    """It comes to life for the first; the second fails before anything of it was written."""
    dying, alive, rest, new = one(4, 2, TERMINATING), one(4, 2), one(4, 3), one(4, 4)
    node = Node()
    node.serve(at(4, 1, rest), at(4, 2, rest, unselectable=(dying,)))
    wanted = [at(4, 1, rest, alive), at(4, 2, rest, new)]
    node.want(*wanted)
    inner = node.maps

    def refuse(_: int, name: str) -> None:
        if name == "lb_metrics":
            raise KernelError("update", 12, name)

    node.maps = FaultyMaps(inner, before=refuse)
    assert list(node.sync().failed) == [wanted[1].frontend]
    assert check(inner) == []
    assert backends_of(inner, wanted[0].frontend) == wanted_of(wanted[0])
    assert state(node, alive) is ACTIVE
    node.maps = inner
    assert node.sync().complete
    assert check(inner, settled=True) == []


def test_a_backend_that_only_a_failed_service_may_name_stays_as_it_is():
    shared, rest = one(4, 2), one(4, 3)
    node = Node()
    node.serve(at(4, 1, rest), at(4, 2, shared))
    wanted = [at(4, 1, rest, shared), at(4, 2, rest)]
    node.want(wanted[0], at(4, 2, shared))
    inner = node.maps
    node.maps = RefusesFrontend(inner, wanted[0].frontend.address)
    assert list(node.sync().failed) == [wanted[0].frontend]
    node.maps = inner
    before = record(node, shared)
    assert node.shadow.defer({wanted[0].frontend}) == {wanted[0].frontend}  # not yet due
    node.want(*wanted)
    state_of = node.state
    node.state = replace(state_of, services=(node.shadow.services[0], state_of.services[1]), delta=None)
    assert node.sync().complete
    assert state(node, shared) is ACTIVE
    assert record(node, shared) == before
    node.state = state_of
    node.shadow.invalidate([wanted[0].frontend])
    assert node.sync().complete
    assert check(inner, settled=True) == []
    node.serve(at(4, 2, rest))
    assert len(inner.items("lb4_backend")) == 1


def test_replies_of_an_address_are_seen_while_any_local_backend_has_it():
    first, second = backend("10.244.1.1:80"), backend("10.244.1.1:81")
    bit = prefilter.source_bit(first.address.address)
    for restarts in (False, True):
        node = Node()
        node.serve(at(4, 1, first, second))
        if restarts:
            node.restart()
        for svc, seen in (
            (at(4, 1, first), True),
            (at(4, 1, first, second), True),
            (at(4, 1, second), True),
            (at(4, 1), False),
        ):
            node.serve(svc)
            assert bool(node.shadow.bit(bit)) is seen
