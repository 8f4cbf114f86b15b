"""What a plan reserves: each entry once, and room that leaves with the same plan only for the next one."""

from __future__ import annotations

import dataclasses

import pytest

from lbagent.model.service import CIDR
from tests.sync.target.plans import QUARANTINED, Node, backend, service
from tests.sync.target.test_failed_changes import give_other_ids


def node_with(**limits: int) -> Node:
    """Return a node whose plans know smaller maps."""
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
    """Return what the one frontend that does not fit is told."""
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
