"""Who observes whom: every node has as many observers as are wanted, also while nodes join and leave."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lbagent.liveness.chosen_peers import ChosenPeers

NAMES = [f"node-{number}" for number in range(14)]


def observers(nodes: frozenset[str], wanted: int) -> Counter[str]:
    """Return how many observers each node has."""
    found: Counter[str] = Counter()
    for own in nodes:
        chosen = ChosenPeers(own, wanted)
        chosen.update(nodes)
        found.update(chosen.peers)
    return found


@given(st.frozensets(st.sampled_from(NAMES), min_size=2), st.integers(1, 9))
@settings(deadline=None)
def test_each_node_has_so_many_observers(nodes: frozenset[str], wanted: int) -> None:
    assert observers(nodes, wanted) == dict.fromkeys(nodes, min(wanted, len(nodes) - 1))


def test_eight_of_a_hundred() -> None:
    nodes = frozenset(f"worker-{number}.example" for number in range(100))
    assert observers(nodes, 8) == dict.fromkeys(nodes, 8)


@given(st.lists(st.frozensets(st.sampled_from(NAMES)), max_size=8), st.integers(1, 5))
@settings(deadline=None)
def test_whatever_joins_and_leaves_the_choice_is_that_of_a_new_agent(steps: list[frozenset[str]], wanted: int) -> None:
    chosen = ChosenPeers(NAMES[0], wanted)
    for nodes in steps:
        chosen.update(nodes | {NAMES[0]})
        fresh = ChosenPeers(NAMES[0], wanted)
        fresh.update(nodes | {NAMES[0]})
        assert chosen.peers == fresh.peers
        assert NAMES[0] not in chosen.peers
