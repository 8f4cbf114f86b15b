"""Fair shares of flows, and which flows are too many."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lbagent.model.flow_balance import FlowBalance


def test_shares_follow_weights() -> None:
    flows = [(n, "a") for n in range(40)]
    balance = FlowBalance({"a": 1, "b": 3}, flows, 0.1, random.sample)
    assert balance.shares == {"a": 10, "b": 30}
    assert balance.limits == {"a": 11, "b": 33}
    assert balance.excess() == {"a": 29}


def test_flows_of_other_backends_do_not_count() -> None:
    balance = FlowBalance({"a": 1, "b": 1}, [(1, "a"), (2, "b"), (3, "gone")], 0.0, random.sample)
    assert balance.shares == {"a": 1, "b": 1}
    assert not balance.excess()


def test_a_few_flows_need_not_be_divided() -> None:
    """One flow of three backends is within."""
    assert not FlowBalance({"a": 1, "b": 1, "c": 1}, [(1, "a")], 0.0, random.sample).excess()


def test_a_client_that_came_later_is_never_reset() -> None:
    balance = FlowBalance({"a": 1, "b": 1}, [(n, "a") for n in range(4)], 0.0, random.sample)
    first = balance.next_flows(2)
    balance.were_reset(first)
    later = [(100 + n, "a") for n in range(2)]
    balance.follow([(n, "a") for n in range(4) if n not in first] + later)
    second = balance.next_flows(9)
    assert set(second) == set(range(4)) - set(first)
    balance.were_reset(second)
    balance.follow([(100 + n, "a") for n in range(4)])
    assert balance.excess() == {"a": 2}
    assert balance.next_flows(9) == [], "the command ends"


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=300),
    st.lists(st.integers(1, 5), min_size=10, max_size=10),
    st.floats(0, 1),
    st.integers(1, 50),
)
def test_it_ends_within_or_with_no_flow_of_the_start_left(
    places: list[int], weights: list[int], within: float, most: int
) -> None:
    """Each flow is reset at most once, none of a backend that is within, and clients that connect again by weight help."""
    flows = dict(enumerate(places))
    draw = random.Random(1)
    balance = FlowBalance(dict(enumerate(weights)), flows.items(), within, random.sample)
    total, reset = len(flows), Counter[int]()
    while chosen := balance.next_flows(most):
        assert len(chosen) <= most
        for key in chosen:
            assert flows[key] in balance.excess()
            reset[key] += 1
            new = draw.choices(range(10), weights)[0]
            balance.were_reset([key])
            del flows[key]
            flows[total + sum(reset.values())] = new
        balance.follow(flows.items())
    assert set(reset) <= set(range(total))
    assert max(reset.values(), default=1) == 1
    for each in balance.excess():
        assert not any(key < total and place == each for key, place in flows.items())
