"""Rendezvous hashing: all nodes agree, shares are even, and a node that joins or leaves moves only its own."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.rendezvous import is_among_first, preferred_node

NODES = st.frozensets(st.text(min_size=1, max_size=8), min_size=1, max_size=8)


@given(st.binary(min_size=4, max_size=4), NODES)
def test_the_order_in_which_nodes_are_known_does_not_matter(address: bytes, nodes: frozenset[str]) -> None:
    assert preferred_node(address, sorted(nodes)) == preferred_node(address, sorted(nodes, reverse=True)) in nodes


@given(st.binary(min_size=4, max_size=4), NODES, st.text(min_size=1, max_size=8))
def test_a_node_that_comes_takes_only_what_it_then_leads(address: bytes, nodes: frozenset[str], new: str) -> None:
    assert preferred_node(address, nodes | {new}) in (preferred_node(address, nodes), new)


def test_shares_are_even() -> None:
    shares = Counter(preferred_node(bytes((10, 0, at >> 8, at & 255)), ("a", "b", "c")) for at in range(3000))
    assert len(shares) == 3
    assert min(shares.values()) > 900


def test_no_node_no_leader() -> None:
    assert preferred_node(b"\1\2\3\4", ()) == ""


@given(st.binary(min_size=1, max_size=9), NODES, st.integers(1, 9))
def test_as_many_nodes_are_first_as_are_wanted_and_the_preferred_one_is(
    key: bytes, nodes: frozenset[str], count: int
) -> None:
    first = {node for node in nodes if is_among_first(key, node, nodes, count)}
    assert len(first) == min(count, len(nodes))
    assert preferred_node(key, nodes) in first


@given(st.binary(min_size=1, max_size=9), NODES, st.text(min_size=1, max_size=8), st.integers(1, 9))
def test_a_node_that_comes_puts_one_at_most_out(key: bytes, nodes: frozenset[str], new: str, count: int) -> None:
    def first(among: frozenset[str]) -> set[str]:
        return {node for node in among if is_among_first(key, node, among, count)}

    assert len(first(nodes) - first(nodes | {new})) <= 1
