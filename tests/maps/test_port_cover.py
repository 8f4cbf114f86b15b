"""The prefixes of a range of ports: exactly its ports, each once, and few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps.port_cover import port_prefixes

PORTS = st.integers(1, 65535)


def covered(first: int, last: int) -> list[int]:
    """Return the ports of all prefixes, in order; a prefix has no bits beyond its length."""
    out: list[int] = []
    for port, bits in port_prefixes(first, last):
        size = 1 << 16 - bits
        assert port % size == 0
        out += range(port, port + size)
    return out


@given(PORTS, PORTS)
def test_exact_cover(one: int, two: int) -> None:
    first, last = sorted((one, two))
    assert covered(first, last) == list(range(first, last + 1))
    assert len(list(port_prefixes(first, last))) <= 30  # as of 2 to 65534


@given(st.integers(1, 65536 - 10_000))
def test_ten_thousand_ports_take_20_prefixes_at_most(first: int) -> None:
    assert len(list(port_prefixes(first, first + 9_999))) <= 20


def test_any_ten_thousand_ports() -> None:
    assert max(len(list(port_prefixes(first, first + 9_999))) for first in range(1, 65536 - 9_999)) <= 20


@pytest.mark.parametrize(
    ("first", "last", "prefixes"),
    [
        (8192, 16383, [(8192, 3)]),
        (1, 1, [(1, 16)]),
        (65535, 65535, [(65535, 16)]),
        (0, 65535, [(0, 0)]),
        (10000, 10003, [(10000, 14)]),
        (10001, 10004, [(10001, 16), (10002, 15), (10004, 16)]),
    ],
)
def test_examples(first: int, last: int, prefixes: list[tuple[int, int]]) -> None:
    assert list(port_prefixes(first, last)) == prefixes
