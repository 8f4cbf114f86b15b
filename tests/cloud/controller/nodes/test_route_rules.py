"""Which routes are created, kept, removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud.controller.cluster_cidrs import parse_cluster_cidrs
from lbagent.cloud.controller.nodes.route_rules import RoutePlan, plan_routes
from lbagent.cloud.provider import Node, Route

CLUSTER = parse_cluster_cidrs("10.244.0.0/16,fd00:244::/56")
A = Node(name="a", uid="1", pod_cidrs=("10.244.1.0/24", "fd00:244:0:1::/64"), addresses=(("InternalIP", "192.0.2.1"),))
B = Node(name="b", uid="2", pod_cidrs=("10.244.2.0/24",))
BARE = Node(name="bare", uid="3")


def route(target: str, destination: str, **more: object) -> Route:
    return Route(f"{target} {destination}", target, destination, **more)  # type: ignore[arg-type]


def made(plan: RoutePlan) -> set[tuple[str, str]]:
    return {(each.target_node, each.destination) for _, each in plan.created}


def test_missing_ones_are_made() -> None:
    plan = plan_routes([A, B, BARE], [route("a", "10.244.1.0/24")], CLUSTER)
    assert plan.deleted == ()
    assert made(plan) == {("a", "fd00:244:0:1::/64"), ("b", "10.244.2.0/24")}
    assert plan.told == (A, B)


def test_a_node_without_ranges_that_has_a_route_is_told() -> None:
    old = route("bare", "10.244.9.0/24")
    plan = plan_routes([BARE], [old], CLUSTER)
    assert (plan.deleted, plan.created, plan.told) == ((old,), (), (BARE,))


def test_what_is_deleted() -> None:
    too_many = [
        route("gone", "10.244.9.0/24"),
        route("", "10.244.8.0/24"),
        route("a", "10.244.7.0/24"),  # of another node
        route("b", "10.244.2.0/24", blackhole=True),
    ]
    others = [
        route("a", "10.0.0.0/8"),  # neither its first nor its last address is the cluster's
        route("gone", "10.99.0.0/24"),
        route("gone", "0.0.0.0/0"),
        route("gone", "words"),
        route("", "fd00:99::/64"),
    ]
    plan = plan_routes([A, B], too_many + others, CLUSTER)
    assert plan.deleted == tuple(too_many)
    assert ("b", "10.244.2.0/24") in made(plan)


def test_other_addresses_of_a_node() -> None:
    new = route("a", "10.244.1.0/24", compares_addresses=True, target_addresses=A.addresses)
    old = route("a", "10.244.1.0/24", compares_addresses=True, target_addresses=(("InternalIP", "192.0.2.9"),))
    assert ("a", "10.244.1.0/24") not in made(plan_routes([A], [new], CLUSTER))
    plan = plan_routes([A], [old], CLUSTER)
    assert plan.deleted == (old,)
    assert ("a", "10.244.1.0/24") in made(plan)


def test_the_same_network_written_otherwise() -> None:
    assert made(plan_routes([A], [route("a", "fd00:244:0:1:0::/64"), route("a", "10.244.1.0/24")], CLUSTER)) == set()


TARGETS = st.sampled_from(["a", "b", "gone", ""])
DESTINATIONS = st.sampled_from(["10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24", "fd00:244:0:1::/64", "10.99.0.0/24"])


@given(st.lists(st.tuples(TARGETS, DESTINATIONS, st.booleans()), unique=True))
def test_after_a_plan_there_is_nothing_to_do(there: list[tuple[str, str, bool]]) -> None:
    routes = [route(target, destination, blackhole=hole) for target, destination, hole in there]
    plan = plan_routes([A, B], routes, CLUSTER)
    after = [each for each in routes if each not in plan.deleted] + [each for _, each in plan.created]
    again = plan_routes([A, B], after, CLUSTER)
    assert (again.deleted, again.created) == ((), ())
    assert {each for each in routes if each.destination == "10.99.0.0/24"} <= set(after)
