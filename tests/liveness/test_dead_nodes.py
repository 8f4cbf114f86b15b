"""Which nodes are dead: three observers or all, the panic rule, and none while suspicions still arrive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.liveness.dead_nodes import DeadNodes, Suspicions

HERE = "n0"


def names(count: int) -> frozenset[str]:
    return frozenset(f"n{number}" for number in range(count))


def suspicions(count: int, by_node: dict[str, Iterable[str]], **more: object) -> Suspicions:
    return Suspicions(names(count), {node: frozenset(by) for node, by in by_node.items()}, 8, **more)  # type: ignore[arg-type]


def decided(given: Suspicions, *, after: float = 10.0) -> DeadNodes:
    decision = DeadNodes(HERE)
    decision.decide(given, 0.0)
    decision.decide(given, after)
    return decision


@pytest.mark.parametrize(
    ("nodes", "observers", "is_dead"),
    [(2, 1, True), (3, 1, False), (3, 2, True), (4, 2, False), (4, 3, True), (9, 2, False), (9, 3, True), (9, 8, True)],
)
def test_three_observers_or_all(nodes: int, observers: int, is_dead: bool) -> None:
    by = [f"n{number}" for number in range(observers)]
    last = f"n{nodes - 1}"
    assert decided(suspicions(nodes, {last: by})).dead == ({last} if is_dead else set())


@pytest.mark.parametrize(
    ("nodes", "without_agent", "observers", "is_dead"),
    [
        (4, ["n2", "n3"], 2, True),  # n2's agent is stopped, and n3 has no power
        (4, ["n3"], 2, False),
        (4, ["n2", "n3"], 1, False),
        (5, ["n2", "n3", "n4"], 2, True),
        (5, ["n1", "n2", "n3", "n4"], 1, False),  # one alone is too few
        (3, ["n1", "n2"], 1, False),
        (2, ["n1"], 1, True),
        (9, ["n3", "n8"], 2, False),  # enough others answer
        (9, ["n3", "n8"], 3, True),
    ],
)
def test_no_observer_is_waited_for_whose_agent_is_stopped(
    nodes: int, without_agent: list[str], observers: int, is_dead: bool
) -> None:
    by = [f"n{number}" for number in range(observers)]
    last = f"n{nodes - 1}"
    assert decided(suspicions(nodes, {last: by}, without_agent=without_agent)).dead == ({last} if is_dead else set())


def test_a_node_does_not_observe_itself_and_a_foreign_name_is_no_observer() -> None:
    assert not decided(suspicions(9, {"n8": ["n8", "n1", "n2"]})).dead
    assert not decided(suspicions(9, {"n8": ["other", "n1", "n2"]})).dead
    assert not decided(suspicions(9, {"other": ["n1", "n2", "n3"]})).dead


def test_this_node_is_never_dead_for_itself() -> None:
    decision = decided(suspicions(9, {HERE: ["n1", "n2", "n3"]}))
    assert not decision.dead
    assert not decision.is_panic


@pytest.mark.parametrize(
    ("nodes", "missing", "is_panic"),
    [(6, 2, False), (6, 3, True), (9, 3, True), (10, 3, False), (10, 4, True), (30, 9, False), (30, 10, True)],
)
def test_a_third_of_the_nodes_is_never_declared_dead(nodes: int, missing: int, is_panic: bool) -> None:
    lost = [f"n{nodes - 1 - number}" for number in range(missing)]
    observers = [f"n{number}" for number in range(min(8, nodes - missing))]
    decision = decided(suspicions(nodes, dict.fromkeys(lost, observers)))
    assert decision.is_panic is is_panic
    assert decision.dead == (set() if is_panic else set(lost))
    assert decision.missing == set(lost)


LOST = ("n6", "n7", "n8")
WORDS = [(node, by) for node in LOST for by in ("n1", "n2", "n3")]


@given(st.permutations(WORDS), st.lists(st.floats(0.0, 2.0), min_size=9, max_size=9), st.booleans())
@settings(deadline=None)
def test_a_third_that_is_missed_one_by_one_is_not_declared_dead_in_between(
    words: list[tuple[str, str]], pauses: list[float], is_silent: bool
) -> None:
    """The suspicions of a part of the nodes arrive, and end, in any order: late if this node sees itself what is missing."""
    decision, now = DeadNodes(HERE), 0.0
    current: dict[str, set[str]] = {}

    def take(**more: object) -> None:
        decision.decide(suspicions(9, current, **more), now)
        assert not decision.dead

    for (node, by), pause in zip(words, pauses, strict=True):
        current.setdefault(node, set()).add(by)
        take(silent=LOST if is_silent else ())
        now += pause if is_silent else 0.04
    now += 5.0
    take()
    assert decision.is_panic
    for node, by in reversed(words):
        current[node].discard(by)
        now += 0.5
        take()
    now += 60.0
    take()
    assert not decision.is_panic


def test_after_a_panic_a_node_that_is_missed_alone_is_dead() -> None:
    lost = {node: ["n1", "n2", "n3"] for node in ("n6", "n7", "n8")}
    decision = decided(suspicions(9, lost))
    assert decision.is_panic
    only = suspicions(9, {"n8": lost["n8"]})
    decision.decide(only, 11.0)
    assert not decision.dead
    decision.decide(only, 20.0)
    assert decision.dead == {"n8"}


def test_a_panic_brings_back_those_that_were_dead() -> None:
    decision = decided(suspicions(9, {"n8": ["n1", "n2", "n3"], "n7": ["n1", "n2", "n3"]}))
    assert decision.dead == {"n7", "n8"}
    decision.decide(suspicions(9, {node: ["n1", "n2", "n3"] for node in ("n6", "n7", "n8")}), 20.0)
    assert decision.is_panic
    assert not decision.dead


def test_the_word_of_a_part_that_is_cut_off_does_not_count() -> None:
    """Two of nine are cut off from the rest, reach the API server, and blame the rest."""
    rest = [f"n{number}" for number in range(7)]
    by_node: dict[str, Iterable[str]] = {"n7": rest, "n8": rest, "n1": ["n7", "n8", "n2"]}
    assert decided(suspicions(9, by_node)).dead == {"n7", "n8"}


def test_two_nodes_that_blame_each_other_are_both_alive() -> None:
    assert not decided(suspicions(2, {"n0": ["n1"], "n1": ["n0"]})).dead


def test_without_the_api_server_a_node_leaves_out_what_it_misses_itself() -> None:
    assert decided(suspicions(9, {}, own=["n5"])).dead == {"n5"}
    assert not decided(suspicions(9, {}, own=["other"])).dead
    panic = decided(suspicions(9, {}, own=["n5", "n6", "n7"]))
    assert panic.is_panic
    assert not panic.dead


def test_a_node_that_is_cut_off_declares_no_further_node_dead_and_lets_nodes_return() -> None:
    decision = decided(suspicions(9, {"n8": ["n1", "n2", "n3"]}))
    more = {"n8": ["n1", "n2", "n3"], "n7": ["n1", "n2", "n3"]}
    decision.decide(suspicions(9, more, is_cut_off=True), 50.0)
    decision.decide(suspicions(9, more, is_cut_off=True), 60.0)
    assert decision.dead == {"n8"}
    decision.decide(suspicions(9, {}, is_cut_off=True), 61.0)
    assert not decision.dead


def test_it_is_declared_within_half_a_second_and_returns_at_once() -> None:
    decision = DeadNodes(HERE)
    gone = suspicions(9, {"n8": ["n1", "n2", "n3"]})
    decision.decide(gone, 0.0)
    assert not decision.dead
    decision.decide(gone, 0.5)
    assert decision.dead == {"n8"}
    decision.decide(suspicions(9, {"n8": ["n1", "n2"]}), 0.6)
    assert not decision.dead


@given(
    st.integers(2, 12),
    st.dictionaries(st.sampled_from(sorted(names(12))), st.sets(st.sampled_from(sorted(names(12))))),
    st.sets(st.sampled_from(sorted(names(12)))),
    st.booleans(),
)
def test_whatever_is_published_less_than_a_third_is_dead(
    nodes: int, by_node: dict[str, set[str]], own: set[str], is_cut_off: bool
) -> None:
    decision = decided(suspicions(nodes, dict(by_node), own=own, is_cut_off=is_cut_off))
    assert decision.dead <= names(nodes) - {HERE}
    assert len(decision.dead) < max(3, nodes / 3)
    assert not (decision.is_panic and decision.dead)


def test_of_many_nodes_those_count_whose_observers_are_mostly_behind_the_cut_with_them() -> None:
    """Ten of thirty are cut off; of four of them only two observers are on this side."""
    lost = [f"n{number}" for number in range(20, 30)]
    here, there = ("n1", "n2", "n3"), ("n4", "n5")
    by_node: dict[str, Iterable[str]] = dict.fromkeys(lost[:6], here) | dict.fromkeys(lost[6:], there)
    decision = decided(suspicions(30, by_node))
    assert decision.is_panic
    assert not decision.dead


def test_of_many_nodes_single_suspicions_alone_are_no_panic() -> None:
    by_node: dict[str, Iterable[str]] = {f"n{number}": [f"n{number + 1}"] for number in range(10, 22)}
    decision = decided(suspicions(30, by_node | {"n29": ["n1", "n2", "n3"]}))
    assert decision.dead == {"n29"}
