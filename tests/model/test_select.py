"""Which endpoints get new flows. Expected values: CategorizeEndpoints (A4), KEP-1669, the hint KEPs, rules of BackendState."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr, L4Type
from lbagent.model.backend import BackendState
from lbagent.model.select import (
    EndpointInfo,
    EndpointSet,
    deduplicate,
    endpoint_state,
    filtered_state,
    quarantine_failed,
    select,
)

READY: dict[str, Any] = {}
DEAD: dict[str, Any] = {"ready": False, "serving": False}
TERM: dict[str, Any] = {"ready": False, "terminating": True}
TERM_DEAD: dict[str, Any] = {"ready": False, "serving": False, "terminating": True}
LOCAL: dict[str, Any] = {"local": True}
QUARANTINED: dict[str, Any] = {"override": BackendState.QUARANTINED}
MAINTENANCE: dict[str, Any] = {"override": BackendState.MAINTENANCE}


def _endpoint(number: int, *traits: dict[str, Any]) -> EndpointInfo:
    merged: dict[str, Any] = {}
    for trait in traits:
        merged.update(trait)
    return EndpointInfo(L3n4Addr(bytes([10, 0, 0, number]), 80), **merged)


def _udp(number: int, *traits: dict[str, Any]) -> EndpointInfo:
    endpoint = _endpoint(number, *traits)
    return replace(endpoint, address=replace(endpoint.address, protocol=L4Type.UDP))


def _numbers(group: tuple[EndpointInfo, ...]) -> list[int]:
    return [endpoint.address.address[3] for endpoint in group]


def _groups(chosen: EndpointSet) -> tuple[list[int], list[int], list[int], list[int]]:
    return (
        _numbers(chosen.selectable),
        _numbers(chosen.unselectable),
        _numbers(chosen.slotless),
        _numbers(chosen.filtered),
    )


def test_ready_ones_serve() -> None:
    """Neither ready nor terminating: no row. Order by address, whatever order they came in."""
    picked = select([_endpoint(10), _endpoint(9), _endpoint(2, DEAD)])
    assert _groups(picked.for_cluster_ip(False)) == ([9, 10], [], [], [2])
    assert picked.has_any


def test_terminating_beside_active() -> None:
    """They keep their flows only: serving, then not serving, then quarantined."""
    picked = select(
        [_endpoint(1, QUARANTINED), _endpoint(2, TERM_DEAD), _endpoint(3, TERM), _endpoint(4), _endpoint(0, TERM_DEAD)]
    )
    assert _groups(picked.cluster) == ([4], [3, 0, 2, 1], [], [])


def test_terminating_fallback() -> None:
    """KEP-1669: none active, so the terminating ones that still serve take new flows."""
    picked = select([_endpoint(3, TERM), _endpoint(1, TERM), _endpoint(2, TERM_DEAD), _endpoint(4, DEAD)])
    assert _groups(picked.cluster) == ([1, 3], [2], [], [4])
    assert picked.has_any


def test_no_endpoint() -> None:
    """Only endpoints that cannot serve: rejected, not dropped."""
    picked = select([_endpoint(1, DEAD), _endpoint(2, TERM_DEAD)])
    assert _groups(picked.cluster) == ([], [2], [], [1])
    assert not picked.has_any
    assert not picked.no_local_backend(picked.local)
    assert select([]).cluster == EndpointSet()
    not_ready = select([_endpoint(1, {"ready": False})])  # serving, as a starting Pod may say; it does not terminate
    assert (_groups(not_ready.cluster), not_ready.has_any) == (([], [], [], [1]), False)


def test_local_policies() -> None:
    """internalTrafficPolicy for ClusterIP only; external frontends follow the external one, for sources outside only."""
    picked = select([_endpoint(1), _endpoint(2, LOCAL)])
    assert _numbers(picked.for_cluster_ip(True).selectable) == [2]
    assert _numbers(picked.for_cluster_ip(False).selectable) == [1, 2]
    assert _numbers(picked.for_outside(True).selectable) == [2]
    assert _numbers(picked.for_outside(True).filtered) == [1]
    assert _numbers(picked.for_inside().selectable) == [1, 2]


def test_local_with_none_here() -> None:
    """None here, some elsewhere: dropped (A5)."""
    picked = select([_endpoint(1), _endpoint(2, LOCAL, DEAD)])
    assert picked.for_outside(True).selectable == ()
    assert picked.no_local_backend(picked.for_outside(True))
    assert not picked.no_local_backend(picked.for_outside(False))


def test_local_fallback_is_local() -> None:
    """A local terminating one serves the Local set even while others of the cluster are ready."""
    picked = select([_endpoint(1), _endpoint(2, LOCAL, TERM), _endpoint(3, TERM)])
    assert _groups(picked.for_outside(True)) == ([2], [], [], [1, 3])
    assert _groups(picked.cluster) == ([1], [2, 3], [], [])


def test_maintenance_and_weight_zero() -> None:
    """No slot, but a row."""
    picked = select([_endpoint(1, MAINTENANCE), _endpoint(2, {"weight": 0}), _endpoint(3)])
    assert _groups(picked.cluster) == ([3], [], [1, 2], [])
    assert endpoint_state(_endpoint(2, {"weight": 0})) is BackendState.MAINTENANCE


def test_operator_and_health_beat_the_fallback() -> None:
    """All active ones taken out: terminating ones serve. A terminating one taken out itself does not."""
    assert _groups(select([_endpoint(1, MAINTENANCE), _endpoint(2, TERM)]).cluster) == ([2], [], [1], [])
    for word in (MAINTENANCE, QUARANTINED, {"weight": 0}):
        picked = select([_endpoint(2, TERM, word)])
        assert _groups(picked.cluster) == ([], [2], [], [])
        assert not picked.has_any


@pytest.mark.parametrize(
    ("traits", "state"),
    [
        ([READY], BackendState.ACTIVE),
        ([{"terminating": True}], BackendState.ACTIVE),  # publishNotReadyAddresses: ready comes first
        ([TERM], BackendState.TERMINATING),
        ([TERM_DEAD], BackendState.TERMINATING),
        ([DEAD], None),
        ([QUARANTINED], BackendState.QUARANTINED),
        ([MAINTENANCE], BackendState.MAINTENANCE),
        ([MAINTENANCE, TERM], BackendState.TERMINATING),
        ([{"override": BackendState.ACTIVE}], BackendState.ACTIVE),
    ],
)
def test_states(traits: list[dict[str, Any]], state: BackendState | None) -> None:
    """The state an endpoint has in its service."""
    assert endpoint_state(_endpoint(1, *traits)) is state


def test_state_of_a_filtered_endpoint() -> None:
    """Rows the agent keeps: quarantined when not ready, active when only filtered out."""
    assert filtered_state(_endpoint(1, DEAD)) is BackendState.QUARANTINED
    assert filtered_state(_endpoint(1)) is BackendState.ACTIVE
    assert filtered_state(_endpoint(1, DEAD, MAINTENANCE)) is BackendState.MAINTENANCE


def _zone(*names: str) -> dict[str, Any]:
    return {"zone_hints": names}


def _node(*names: str) -> dict[str, Any]:
    return {"node_hints": names}


@pytest.mark.parametrize(
    ("endpoints", "selectable"),
    [
        ([_endpoint(1, _zone("a")), _endpoint(2, _zone("b")), _endpoint(3, _zone("b", "a"))], [1, 3]),
        ([_endpoint(1, _zone("b")), _endpoint(2, _zone("b"))], [1, 2]),  # no hint for us means no filter
        ([_endpoint(1, _zone("a")), _endpoint(2)], [1, 2]),  # one without a hint disables the mode
        ([_endpoint(1, _node("n1"), _zone("b")), _endpoint(2, _node("n2"), _zone("a"))], [1]),  # node before zone
        (
            [_endpoint(1, _node("n2"), _zone("a")), _endpoint(2, _node("n3"), _zone("b"))],
            [1],
        ),  # none for our node: zone
        ([_endpoint(1, _zone("a")), _endpoint(2, DEAD), _endpoint(3, _zone("b"))], [1]),  # not-ready do not count
        ([_endpoint(1, _zone("a")), _endpoint(2, TERM), _endpoint(3, _zone("b"))], [1]),  # nor terminating
        ([_endpoint(1, _zone("a"), MAINTENANCE), _endpoint(2, _zone("b"))], [2]),  # one taken out cannot hold the zone
        ([_endpoint(1, _zone("b"), TERM), _endpoint(2, _zone("a"), TERM)], [1, 2]),  # ignored in the fallback
    ],
)
def test_topology(endpoints: list[EndpointInfo], selectable: list[int]) -> None:
    """Hints alone decide; this is node n1 in zone a."""
    assert _numbers(select(endpoints, node_name="n1", zone="a").cluster.selectable) == selectable


def test_topology_never_for_local() -> None:
    """Local policies ignore hints."""
    picked = select([_endpoint(1, _zone("b"), LOCAL), _endpoint(2, _zone("a"))], node_name="n1", zone="a")
    assert _numbers(picked.cluster.selectable) == [2]
    assert _numbers(picked.local.selectable) == [1]


def test_topology_without_a_node_object() -> None:
    """The zone is unknown: zone hints are unused, node hints still apply."""
    zones = [_endpoint(1, _zone("")), _endpoint(2, _zone("b"))]
    assert _numbers(select(zones, node_name="n1").cluster.selectable) == [1, 2]
    assert _numbers(
        select([_endpoint(1, _node("n1")), _endpoint(2, _node("x"))], node_name="n1").cluster.selectable
    ) == [1]
    nameless = [_endpoint(1, _node("")), _endpoint(2, _node("n1"))]
    assert _numbers(select(nameless, zone="a").cluster.selectable) == [1, 2]


def test_topology_filters_the_rest_too() -> None:
    """A quarantined one of another zone has no slot; a terminating one without a hint keeps it."""
    endpoints = [
        _endpoint(1, _zone("a")),
        _endpoint(2, _zone("b"), QUARANTINED),
        _endpoint(3, TERM),
        _endpoint(4, _zone("b")),
        _endpoint(5, _zone("b"), TERM),
        _endpoint(6, _zone("a"), TERM),
        _endpoint(7, QUARANTINED),
    ]
    assert _groups(select(endpoints, zone="a").cluster) == ([1], [3, 6], [], [2, 4, 5, 7])


def test_duplicates() -> None:
    """One address in two slices: ready wins, then serving, then local, then the first."""
    assert deduplicate([_endpoint(1, TERM), _endpoint(1)]) == [_endpoint(1)]
    assert deduplicate([_endpoint(1, TERM_DEAD), _endpoint(1, TERM)]) == [_endpoint(1, TERM)]
    assert deduplicate([_endpoint(1), _endpoint(1, LOCAL)]) == [_endpoint(1, LOCAL)]
    first = _endpoint(1, {"node_name": "x"})
    assert deduplicate([first, _endpoint(1, {"node_name": "y"})]) == [first]


def test_a12_flows_of_udp_leave_an_endpoint_that_does_not_serve() -> None:
    """Without a row its flows move to another endpoint; TCP flows stay, and so does all while there is no other one."""
    away = [DEAD, TERM_DEAD, {**DEAD, **MAINTENANCE}, {**TERM_DEAD, **QUARANTINED}]
    members = [_udp(1), *(_udp(number, traits) for number, traits in enumerate(away, 2)), _udp(9, TERM)]
    assert _groups(select(members).cluster) == ([1], [9], [], [])
    assert _groups(select(members[1:-1]).cluster) == ([], [3, 5], [], [2, 4])
    tcp = [_endpoint(1), *(_endpoint(number, traits) for number, traits in enumerate(away, 2))]
    assert _groups(select(tcp).cluster) == ([1], [3, 5], [], [2, 4])
    publishes = _udp(4, {"ready": True, "serving": False, "terminating": True})
    assert _groups(select([publishes]).cluster) == ([4], [], [], [])
    held = _udp(5, {"ready": True, "serving": False}, MAINTENANCE)
    assert _groups(select([_udp(1), held]).cluster) == ([1], [], [5], []), "the operator rests it: its flows stay"


def test_a12_each_set_looks_for_another_endpoint_of_its_own() -> None:
    picked = select([_udp(1), _udp(2, TERM_DEAD, LOCAL)])
    assert _groups(picked.cluster) == ([1], [], [], [])
    assert _groups(picked.local) == ([], [2], [], [1])


traits = st.sampled_from([READY, DEAD, TERM, TERM_DEAD, QUARANTINED, MAINTENANCE, {"weight": 0}])
endpoints = st.builds(
    _endpoint,
    st.integers(1, 30),
    traits,
    st.sampled_from([{}, LOCAL]),
    st.sampled_from([{}, _zone("a"), _zone("b")]),
    st.sampled_from([{}, _node("n1"), _node("n2")]),
)


@given(st.lists(endpoints, max_size=12, unique_by=lambda endpoint: endpoint.address), st.randoms())
def test_everybody_has_one_place(members: list[EndpointInfo], random: Any) -> None:
    """Each endpoint is in exactly one group of each set; order of arrival does not count; if one can serve, at least one does."""
    picked = select(members, node_name="n1", zone="a")
    for chosen in (picked.cluster, picked.local):
        placed = chosen.selectable + chosen.unselectable + chosen.slotless + chosen.filtered
        assert sorted(_numbers(placed)) == sorted(_numbers(tuple(members)))
    assert bool(picked.cluster.selectable) is picked.has_any
    assert all(endpoint.local for endpoint in picked.local.selectable)
    shuffled = list(members)
    random.shuffle(shuffled)
    assert select(shuffled, node_name="n1", zone="a") == picked


def test_without_a_local_policy_nobody_asks_for_the_set_of_this_node() -> None:
    assert select([_endpoint(1, LOCAL)], with_local=False).local == EndpointSet()
    assert _numbers(select([_endpoint(1, LOCAL)]).local.selectable) == [1]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.booleans()), max_size=12), st.booleans()
)
def test_slots_are_in_the_order_of_addresses(found, is_mixed):
    """Also where endpoints are of both families or of several protocols, which those of one port of a Service are not."""
    endpoints = [
        EndpointInfo(
            L3n4Addr(
                bytes([number] * (16 if is_mixed and is_long else 4)),
                80 + port,
                L4Type.UDP if is_mixed and is_udp else L4Type.TCP,
            )
        )
        for number, port, is_long, is_udp in found
    ]
    slots = [endpoint.address for endpoint in select(endpoints).cluster.selectable]
    assert slots == sorted({endpoint.address for endpoint in endpoints}, key=lambda address: address.sort_key)


# --- health checks ---

OPERATORS_ACTIVE: dict[str, Any] = {"override": BackendState.ACTIVE, "is_operators": True}


def _checked(failed: Iterable[int], *endpoints: EndpointInfo) -> tuple[list[int], list[int], bool]:
    """Return which endpoints get new flows, which are quarantined, and whether the checks change nothing."""
    found = quarantine_failed(endpoints, {_endpoint(number).address for number in failed})
    picked = select(found.endpoints).cluster
    states = {each.address.address[3]: endpoint_state(each) for each in found.endpoints}
    quarantined = sorted(number for number, state in states.items() if state is BackendState.QUARANTINED)
    return _numbers(picked.selectable), quarantined, found.panic


@pytest.mark.parametrize(
    ("count", "failed", "selectable"),
    [
        (1, [1], [1]),
        (2, [1], [2]),
        (2, [1, 2], [1, 2]),
        (3, [1, 2], [1, 2, 3]),
        (4, [1, 2], [3, 4]),
        (5, [1, 2], [3, 4, 5]),
        (5, [1, 2, 3], [1, 2, 3, 4, 5]),
    ],
)
def test_failed_ones_are_out_unless_they_are_more_than_half(
    count: int, failed: list[int], selectable: list[int]
) -> None:
    panic = len(selectable) == count
    quarantined = [] if panic else failed
    assert _checked(failed, *map(_endpoint, range(1, count + 1))) == (selectable, quarantined, panic)


def test_half_is_of_those_that_would_get_new_flows() -> None:
    """Of 1 to 4 only 1 and 2 would: one of two may be out, both not."""
    others = _endpoint(3, DEAD), _endpoint(4, MAINTENANCE), _endpoint(5, QUARANTINED), _endpoint(6, TERM)
    assert _checked([1, 3, 4], _endpoint(1), _endpoint(2), *others) == ([2], [1, 5], False)
    assert _checked([1, 2], _endpoint(1), _endpoint(2), *others) == ([1, 2], [5], True)


def test_what_the_operator_set_stays() -> None:
    pinned = _endpoint(1, OPERATORS_ACTIVE)
    assert _checked([1, 2], pinned, _endpoint(2), _endpoint(3)) == ([1, 3], [2], False)
    assert _checked([1], pinned) == ([1], [], False)
    maintenance = _endpoint(1, {"override": BackendState.MAINTENANCE, "is_operators": True})
    assert _checked([1], maintenance, _endpoint(2)) == ([2], [], False)


def test_terminating_ones_that_fail_are_no_fallback_but_never_the_last_ones() -> None:
    assert _checked([1], _endpoint(1, TERM), _endpoint(2, TERM))[0] == [2]
    assert _checked([1], _endpoint(1, TERM))[0] == [1]
    assert _checked([1, 2], _endpoint(1, TERM), _endpoint(2, TERM))[0] == [1, 2]


def test_an_endpoint_of_two_slices_counts_once() -> None:
    assert _checked([1], _endpoint(1), _endpoint(1), _endpoint(2)) == ([2], [1], False)


@given(
    st.lists(st.sampled_from([READY, DEAD, TERM, TERM_DEAD, MAINTENANCE, QUARANTINED, OPERATORS_ACTIVE]), max_size=8),
    st.sets(st.integers(0, 7)),
)
def test_a_check_never_empties_a_service(traits: list[dict[str, Any]], failed: set[int]) -> None:
    endpoints = [_endpoint(number, each) for number, each in enumerate(traits)]
    before = _numbers(select(endpoints).cluster.selectable)
    after = _checked(failed, *endpoints)[0]
    assert 2 * len(after) >= len(before)
    assert set(after) <= set(before)


# --- dead nodes ---

GONE: dict[str, Any] = {"node_is_dead": True, "node_name": "n9"}


def test_endpoints_of_a_dead_node_get_no_new_flow_while_another_can() -> None:
    picked = select([_endpoint(1, GONE), _endpoint(2), _endpoint(3, GONE)])
    assert _groups(picked.for_cluster_ip(False)) == ([2], [], [], [1, 3])
    assert picked.has_any


@pytest.mark.parametrize("trait", [READY, TERM])
def test_they_return_when_no_other_endpoint_of_the_service_is_left(trait: dict[str, Any]) -> None:
    """One that is not ready, quarantined or in maintenance is not left: it could take no flow either."""
    others = [_endpoint(2, DEAD), _endpoint(3, QUARANTINED), _endpoint(4, MAINTENANCE), _endpoint(5, TERM_DEAD)]
    picked = select([_endpoint(1, GONE, trait), *others])
    assert _groups(picked.for_cluster_ip(False))[0] == [1]


def test_a_terminating_endpoint_that_serves_is_preferred_to_a_dead_node() -> None:
    picked = select([_endpoint(1, GONE), _endpoint(2, TERM)])
    assert _groups(picked.for_cluster_ip(False)) == ([2], [], [], [1])


def test_on_a_dead_node_what_the_operator_took_out_stays_out() -> None:
    picked = select([_endpoint(1, GONE, QUARANTINED), _endpoint(2, GONE), _endpoint(3, GONE, MAINTENANCE)])
    assert _groups(picked.for_cluster_ip(False)) == ([2], [1], [3], [])


def test_a_zone_whose_nodes_are_all_dead_uses_the_others() -> None:
    here, there = {"zone_hints": ("a",)}, {"zone_hints": ("b",)}
    picked = select([_endpoint(1, GONE, here), _endpoint(2, there)], zone="a")
    assert _groups(picked.for_cluster_ip(False))[0] == [2]


def test_a_tier_whose_nodes_are_all_dead_is_passed_over() -> None:
    picked = select([_endpoint(1, GONE, {"tier": 0}), _endpoint(2, {"tier": 1})])
    assert _groups(picked.for_cluster_ip(False))[0] == [2]


def test_the_entry_of_one_on_a_dead_node_takes_no_repeated_syn() -> None:
    """Quarantined: its flows go on, and a SYN selects another backend. Other states stay what they are."""
    assert filtered_state(_endpoint(1, GONE)) is BackendState.QUARANTINED
    assert filtered_state(_endpoint(1, GONE, TERM)) is BackendState.TERMINATING
    assert filtered_state(_endpoint(1, GONE, MAINTENANCE)) is BackendState.MAINTENANCE
    assert filtered_state(_endpoint(1)) is BackendState.ACTIVE


@given(st.lists(st.tuples(st.sampled_from([READY, DEAD, TERM, QUARANTINED, MAINTENANCE]), st.booleans()), max_size=8))
def test_dead_nodes_never_empty_a_service(traits: list[tuple[dict[str, Any], bool]]) -> None:
    with_dead = [_endpoint(number, trait, GONE if dead else {}) for number, (trait, dead) in enumerate(traits)]
    without = [_endpoint(number, trait) for number, (trait, _) in enumerate(traits)]
    chosen, usual = select(with_dead).cluster, select(without).cluster
    assert bool(chosen.selectable) == bool(usual.selectable)
    kinds = {endpoint.node_is_dead for endpoint in chosen.selectable}
    assert len(kinds) <= 1
