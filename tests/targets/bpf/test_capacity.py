"""What a plan reserves: each entry once, and room that leaves with the same plan only for the next one."""

from __future__ import annotations

import dataclasses

import pytest

from lbagent.errors import KernelError
from lbagent.maps import backend_codec
from lbagent.maps.consistency import check
from lbagent.maps.frontend_codec import service_key
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.service import CIDR, Algorithm
from lbagent.testing.faulty_maps import FaultyMaps
from tests.targets.bpf.plans import (
    QUARANTINED,
    SMALL,
    TERMINATING,
    Node,
    backend,
    backends_of,
    service,
    wanted_of,
)
from tests.targets.bpf.test_failed_changes import give_other_ids


def node_with(**limits: int) -> Node:
    """Return a node whose plans have smaller maps."""
    node = Node()
    limit(node, **limits)
    return node


def limit(node: Node, **limits: int) -> None:
    specs = dict(node.shadow.specs)
    for name, entries in limits.items():
        specs[name] = dataclasses.replace(specs[name], max_entries=entries)
    node.shadow.specs = specs


def some(count: int, first: int = 1):
    return [backend(f"10.244.0.{n}:80") for n in range(first, first + count)]


def web(count: int, number: int = 1, first: int = 1, **more):
    return service(f"10.96.0.{number}:80", *some(count, first), **more)


def refused(node: Node, *services) -> str:
    """Return the error of the one frontend that does not fit."""
    node.want(*services)
    (error,) = node.sync().failed.values()
    return str(error)


def test_entries_that_are_there_are_not_counted_again():
    node = node_with(lb4_service=6)
    node.serve(web(4))
    node.serve(web(5))
    assert "lb4_service is full: 6 of 6 entries used, 1 more needed" in refused(node, web(6))


def test_two_of_one_plan_share_the_room():
    node_with(lb4_service=6).serve(web(2), web(2, 2))
    assert "3 of 5 entries used, 3 more needed" in refused(node_with(lb4_service=5), web(2), web(2, 2))


def test_who_needs_no_more_takes_nothing_from_others():
    node = node_with(lb4_service=8)
    node.serve(web(3), web(1, 2))
    node.serve(web(3, first=9), web(3, 2))


def test_room_that_leaves_is_there_for_the_next_plan():
    node = node_with(lb4_service=6)
    node.serve(web(3), web(1, 2))
    assert "6 of 6 entries used, 2 more needed" in refused(node, web(1), web(3, 2))
    assert node.sync().complete


def test_who_needs_no_more_is_never_refused():
    """Whatever the map held when it was found."""
    node = Node()
    node.serve(web(3))
    limit(node, lb4_service=2)
    node.serve(web(3, first=9))
    node.serve(web(2))
    limit(node, lb4_service=1)
    node.serve(web(1))


def test_ranges_that_stay_need_no_room():
    node = node_with(lb4_source_range=2)
    one, two, three = (CIDR.parse(f"10.{n}.0.0/16") for n in range(3))
    node.serve(web(1, source_ranges=(one,)))
    node.serve(web(1, source_ranges=(one, two)))
    assert "2 of 2 entries used, 1 more needed" in refused(node, web(1, source_ranges=(one, two, three)))
    node.serve(web(1, source_ranges=(two, three)))


@pytest.mark.parametrize("room", [6, 5, 3])
def test_under_another_id_all_matches_are_new(room):
    """Those under the old id leave first where both do not fit."""
    node = node_with(lb_affinity_match=room)
    node.serve(web(3, session_affinity=True))
    give_other_ids(node)
    node.serve(web(3, session_affinity=True))
    assert node.shadow.pressure()["lb_affinity_match"] == (3, room)


def test_slots_of_backends_that_rest_are_counted():
    svc = web(
        2, unselectable=(backend("10.244.0.9:80", QUARANTINED),), slotless=(backend("10.244.0.8:80", QUARANTINED),)
    )
    node = node_with(lb4_service=4)
    node.serve(svc)
    assert node.shadow.pressure()["lb4_service"] == (4, 4)
    assert "0 of 3 entries used, 4 more needed" in refused(node_with(lb4_service=3), svc)


def test_ids_of_two_bytes_are_read_back_whole():
    node = Node()
    give_other_ids(node, 300)
    node.serve(web(1), web(2, 2, session_affinity=True, source_ranges=(CIDR.parse("10.0.0.0/8"),)))
    found = node.restart()
    assert [number for _, number in found.service_ids] == [300, 301]
    node.want(web(1), web(2, 2, session_affinity=True, source_ranges=(CIDR.parse("10.0.0.0/8"),)))
    assert dict(node.sync().written) == {}


def test_a_frontend_that_was_refused_is_not_there():
    node = node_with(lb4_service=4)
    node.serve()
    refused(node, web(9))
    assert node.shadow.frontends == {}
    assert node.shadow.refs == {}
    assert node.shadow.filter_refs == {}
    assert dict(node.serve().written) == {}


def test_backends_that_have_a_slot_keep_it_before_others_get_one():
    node = node_with(lb4_service=3)
    node.serve(web(2, first=2))
    assert "2 of its 4 backends; no new flow goes to 10.244.0.1:80/TCP, 10.244.0.4:80/TCP" in refused(node, web(4))
    assert backends_of(node.maps, web(1).frontend) == wanted_of(web(2, first=2))


def test_a_backend_without_a_slot_keeps_its_row_so_that_its_flows_go_on():
    node = node_with(lb4_service=4)
    node.serve(web(3))
    leaving = tuple(backend(f"10.244.0.{n}:80", TERMINATING) for n in (1, 2, 3))
    refused(node, web(3, first=7, unselectable=leaving))
    assert backends_of(node.maps, web(1).frontend) == wanted_of(web(3, first=7))
    rows = [backend_codec.backend_of(row)[0] for _, row in node.maps.items("lb4_backend")]
    assert {each.address for each in leaving} <= set(rows)
    refused(node, web(4, first=7))
    rows = [backend_codec.backend_of(row)[0] for _, row in node.maps.items("lb4_backend")]
    assert {each.address for each in leaving}.isdisjoint(rows), "what is gone goes"


def test_affinity_begins_when_all_matches_fit():
    node = node_with(lb_affinity_match=2)
    node.serve(web(3))
    sticky = web(3, session_affinity=True)
    assert "has no session affinity until all its backends fit" in refused(node, sticky)
    assert backends_of(node.maps, sticky.frontend) == wanted_of(sticky)
    assert list(node.maps.items("lb_affinity_match")) == []
    assert check(node.maps, settled=True) == []
    limit(node, lb_affinity_match=3)
    assert node.sync().complete
    assert len(node.maps.items("lb_affinity_match")) == 3


def test_with_affinity_as_many_backends_are_served_as_there_are_matches():
    node = node_with(lb_affinity_match=2)
    node.serve(web(2, session_affinity=True))
    assert "2 of its 3 backends" in refused(node, web(3, session_affinity=True))
    assert backends_of(node.maps, web(1).frontend) == wanted_of(web(2))
    refused(node, web(3, first=5, session_affinity=True, algorithm=Algorithm.MAGLEV))
    assert backends_of(node.maps, web(1).frontend) == wanted_of(web(2, first=5))
    assert check(node.maps, settled=True) == []


def test_slots_with_a_gap_are_counted_one_by_one():
    """A removal of slots that broke off leaves 0, 1, 3, 4: slot 2 needs room, and slot 4 leaves last."""
    node = Node(MemoryMaps(dataclasses.replace(SMALL, services=5)))
    node.serve(web(4))
    node.want(web(1))
    inner, deleted = node.maps, []

    def second_slot(_number: int, name: str) -> None:
        if name == "lb4_service":
            deleted.append(name)
            if len(deleted) == 3:  # slot 0 is written, slot 2 is gone
                raise KernelError("delete", 12, name)

    node.maps = FaultyMaps(inner, before=second_slot)
    assert not node.sync().complete
    node.maps = inner
    assert [slot for slot in range(5) if inner.get("lb4_service", service_key(web(1).frontend, slot))] == [0, 1, 3, 4]
    assert "5 of 5 entries used, 1 more needed" in refused(node, service("10.96.0.9:80"), web(3))
    assert backends_of(inner, web(1).frontend) == wanted_of(web(1))
    assert node.sync().complete


def test_freed_room_goes_to_served_frontends_then_to_older_services():
    node = node_with(lb4_service=20)
    waiting = [web(1, number, created=float(number)) for number in range(30, 10, -1)]
    node.serve(web(17), web(1, 9))
    node.want(web(17), web(2, 9), *waiting)
    assert len(node.sync().failed) == 21
    for services in ([web(10)], [web(10)]):
        node.want(*services, web(2, 9), *waiting)
        node.sync()
    served = {frontend.address[-1] for frontend in node.shadow.frontends}
    assert served == {1, 9, 11, 12, 13}, "11 + 3 + 3 x 2 of 20 entries"
    assert backends_of(node.maps, web(1, 9).frontend) == wanted_of(web(2, 9))
