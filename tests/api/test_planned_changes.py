"""What becomes of each flow when manifests are applied: by the rules of docs/operations.md, on rows of `svc list`."""

from __future__ import annotations

from typing import Any

import pytest

from lbagent.api.planned_changes import FlowFates, Served, live_plan

Row = dict[str, Any]


def backend(address: str, state: str = "active", **more: object) -> Row:
    selectable = state in ("active", "terminating")
    row = {"id": 1, "address": address, "state": state, "weight": 1, "node": "n1", "zone": "", "local": False}
    return row | {"selectable": selectable} | more


def frontend(address: str, *backends: str | Row, name: str = "web", **more: object) -> Row:
    row = {
        "id": 1,
        "namespace": "shop",
        "name": name,
        "port_name": "",
        "frontend": address,
        "scope": "external",
        "type": "ClusterIP",
        "flags": ["ClusterIP", "non-routable"],
        "algorithm": "random",
        "affinity_timeout_s": 0,
        "ext_traffic_policy": "Cluster",
        "int_traffic_policy": "Cluster",
        "backends": [backend(each) if isinstance(each, str) else each for each in backends],
    }
    return row | more


TCP, UDP = "10.96.0.1:80/TCP", "10.96.0.2:53/UDP"
A, B = "10.0.0.1:8080/TCP", "10.0.0.2:8080/TCP"
X, Y = "10.0.0.1:53/UDP", "10.0.0.2:53/UDP"
# rows before, rows after, flows, (kept, lost, moved)
CASES: dict[str, tuple[list[Row], list[Row], dict[tuple[str, str], int], tuple[int, int, int]]] = {
    "nothing changes": ([frontend(TCP, A, B)], [frontend(TCP, A, B)], {(TCP, A): 3, (TCP, B): 2}, (5, 0, 0)),
    "a backend goes": ([frontend(TCP, A, B)], [frontend(TCP, B)], {(TCP, A): 3, (TCP, B): 2}, (2, 3, 0)),
    "it stays with another Service": (
        [frontend(TCP, A, B), frontend("10.96.0.9:80/TCP", A, name="other")],
        [frontend(TCP, B), frontend("10.96.0.9:80/TCP", A, name="other")],
        {(TCP, A): 3},
        (3, 0, 0),
    ),
    "it goes from the only Service that had it left": (
        [frontend(TCP, B), frontend("10.96.0.9:80/TCP", A, name="other")],
        [frontend(TCP, B), frontend("10.96.0.9:80/TCP", B, name="other")],
        {(TCP, A): 3},
        (0, 3, 0),
    ),
    "UDP moves": ([frontend(UDP, X, Y)], [frontend(UDP, Y)], {(UDP, X): 3, (UDP, Y): 1}, (1, 0, 3)),
    "UDP moves although another Service has the backend": (
        [frontend(UDP, X, Y), frontend("10.96.0.9:53/UDP", X, name="other")],
        [frontend(UDP, Y), frontend("10.96.0.9:53/UDP", X, name="other")],
        {(UDP, X): 3},
        (0, 0, 3),
    ),
    "UDP has nowhere to go": ([frontend(UDP, X)], [frontend(UDP)], {(UDP, X): 3}, (0, 3, 0)),
    "UDP whose only other backend takes no new flow": (
        [frontend(UDP, X, Y)],
        [frontend(UDP, backend(Y, "maintenance"))],
        {(UDP, X): 3},
        (0, 3, 0),
    ),
    "a backend rests": (
        [frontend(TCP, A, B)],
        [frontend(TCP, backend(A, "maintenance"), B)],
        {(TCP, A): 3},
        (3, 0, 0),
    ),
    "the frontend goes": (
        [frontend(TCP, A), frontend(UDP, X)],
        [],
        {(TCP, A): 3, (UDP, X): 2, (UDP, ""): 1},
        (0, 6, 0),
    ),
    "the frontend goes, its backend stays elsewhere": (
        [frontend(TCP, A), frontend("10.96.0.9:80/TCP", A)],
        [frontend("10.96.0.9:80/TCP", A)],
        {(TCP, A): 3},
        (0, 3, 0),
    ),
    "flows whose backend went before": (
        [frontend(TCP, B), frontend(UDP, Y)],
        [frontend(TCP, B), frontend(UDP, Y)],
        {(TCP, ""): 3, (UDP, X): 2, (TCP, A): 1},
        (6, 0, 0),
    ),
    "flows of a frontend that went before": ([frontend(TCP, A)], [frontend(TCP, A)], {(UDP, X): 3}, (0, 0, 0)),
}


@pytest.mark.parametrize(("before", "after", "flows", "wanted"), CASES.values(), ids=CASES)
def test_fates(
    before: list[Row], after: list[Row], flows: dict[tuple[str, str], int], wanted: tuple[int, int, int]
) -> None:
    found = live_plan(Served(before, flows), after)
    kept, lost, moved = wanted
    assert found.flows == FlowFates(sum(wanted), kept, lost, moved)
    # flows of a frontend that loses none may be among the unchanged
    assert sum(change.flows.lost for change in found.changes) == lost
    assert sum(change.flows.moved for change in found.changes) == moved


@pytest.mark.parametrize("word", ["keep", "drain=30"])
def test_flows_of_a_backend_that_goes_are_kept_with_the_new_word(word: str) -> None:
    """The word of the old row does not count; a backend that is gone already is no change."""
    for old_word in ({}, {"stale_flows": word}):
        found = live_plan(
            Served([frontend(TCP, A, B, **old_word)], {(TCP, A): 5}), [frontend(TCP, B, stale_flows=word)]
        )
        assert found.flows == FlowFates(5, kept=5)
        assert found.changes[0].backends_removed == [A]
    gone = backend(A, "terminating", gone=True, selectable=False)
    before = frontend(TCP, gone, B, stale_flows=word)
    found = live_plan(Served([before], {(TCP, A): 5}), [frontend(TCP, B, stale_flows=word)])
    assert (found.unchanged, found.flows) == (1, FlowFates(5, kept=5))
    found = live_plan(Served([before], {(TCP, A): 5}), [frontend(TCP, B)])
    assert found.flows == FlowFates(5, lost=5)


def test_the_two_rows_of_a_frontend_are_two() -> None:
    inside = frontend(TCP, B, scope="internal")
    found = live_plan(
        Served([frontend(TCP, A), inside], {(TCP, A): 2, (f"{TCP}/i", B): 3}),
        [frontend(TCP, A), frontend(TCP, A, scope="internal")],
    )
    (change,) = found.changes
    assert (change.frontend, change.flows) == (f"{TCP}/i", FlowFates(3, 0, 3, 0))


def test_words_and_backends() -> None:
    new = frontend("10.96.0.7:80/TCP", A, name="new")
    found = live_plan(Served([frontend(TCP, A, B), frontend(UDP, X)], {}), [frontend(TCP, B, "10.0.0.3:8080/TCP"), new])
    assert [(each.change, each.service, each.frontend) for each in found.changes] == [
        ("update", "shop/web", TCP),
        ("remove", "shop/web", UDP),
        ("add", "shop/new", "10.96.0.7:80/TCP"),
    ]
    assert [(each.backends_added, each.backends_removed) for each in found.changes] == [
        (["10.0.0.3:8080/TCP"], [A]),
        ([], [X]),
        ([A], []),
    ]


@pytest.mark.parametrize(
    "other",
    [
        frontend(TCP, A, algorithm="maglev"),
        frontend(TCP, A, affinity_timeout_s=60),
        frontend(TCP, A, flags=["LoadBalancer"]),
        frontend(TCP, A, source_ranges=["192.0.2.0/24"]),
        frontend(TCP, backend(A, weight=3)),
        frontend(TCP, backend(A, "terminating")),
        frontend(TCP, A, name="other"),
    ],
)
def test_any_other_word_is_an_update(other: Row) -> None:
    (change,) = live_plan(Served([frontend(TCP, A)], {(TCP, A): 2}), [other]).changes
    assert (change.change, change.flows) == ("update", FlowFates(2, 2, 0, 0))


def test_what_is_no_change() -> None:
    old = frontend(TCP, backend(A, id=7), B, id=7, flags=["ClusterIP"])
    assert live_plan(Served([old], {}), [frontend(TCP, B, A)]).unchanged == 1
    resting = frontend(TCP, backend(A, "maintenance"), B)
    assert live_plan(Served([resting], {}, {A}), [frontend(TCP, A, B)]).unchanged == 1
    assert live_plan(Served([resting], {}), [frontend(TCP, A, B)]).unchanged == 0


def test_services_of_other_sources_stay() -> None:
    before = [frontend(TCP, A), frontend(UDP, X, name="dns"), frontend("10.96.0.8:80/TCP", A)]
    found = live_plan(Served(before, {(UDP, X): 3}, others_stay=True), [frontend(TCP, A)])
    assert [(each.change, each.frontend) for each in found.changes] == [("remove", "10.96.0.8:80/TCP")]
    assert found.flows == FlowFates(3, 3, 0, 0)


def test_of_maps_alone() -> None:
    """They have no names, nodes and weights, and no backend without a slot."""
    old = frontend(TCP, backend(A, node="?", weight=1), name="restored", namespace="?")
    new = frontend(TCP, backend(A, weight=5), backend(B, "maintenance"))
    assert live_plan(Served([old], {}, of_maps=True), [new]).unchanged == 1
    (change,) = live_plan(Served([old], {(TCP, A): 1}, of_maps=True), [frontend(TCP, B)]).changes
    assert (change.service, change.flows.lost) == ("shop/web", 1)
