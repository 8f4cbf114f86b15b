"""The users of the prefilter's bits: what a counter would hold, also beyond what a byte does."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lbagent.targets.bpf.record_array import BitUsers

BITS = 64
steps = st.lists(st.tuples(st.integers(0, BITS - 1), st.sampled_from([1, 3, 250, 300, -1, -2, -251])), max_size=40)


@given(steps)
def test_it_counts_as_a_counter_does(made: list[tuple[int, int]]) -> None:
    users, known = BitUsers(BITS), Counter[int]()
    for bit, by in made:
        if by == 3:
            users.add_each([bit] * 3)
            known[bit] += 3
        else:
            known[bit] = max(0, known[bit] + by)
            assert users.add(bit, by) == known[bit]
    assert dict(users) == +known
    assert len(users) == len(+known)
    assert users.unused(range(BITS)) == [bit for bit in range(BITS) if not known[bit]]


def test_a_bit_may_have_more_users_than_a_byte_counts() -> None:
    users = BitUsers(BITS)
    users.add_each([5] * 1000)
    assert users[5] == 1000
    assert users.add(5, -800) == 200
    assert users.add(5, -200) == 0
    assert 5 not in users
