"""Quantiles of handshakes, and the sum of two."""

from __future__ import annotations

import pytest

from lbagent.model.handshakes import BOUNDS_US, Handshakes


def made(**counts: int) -> Handshakes:
    """Return handshakes with counts by the number of their bucket."""
    return Handshakes(tuple(counts.get(f"b{n}", 0) for n in range(17)))


def test_the_bounds() -> None:
    assert (BOUNDS_US[0], BOUNDS_US[-1], len(BOUNDS_US)) == (64, 2_097_152, 16)


@pytest.mark.parametrize(
    ("found", "part", "us"),
    [
        (made(), 0.5, None),
        (made(b0=1), 0.5, 32),
        (made(b0=1), 1.0, 64),
        (made(b1=4), 0.5, 96),  # half way from 64 to 128
        (made(b0=98, b4=2), 0.5, 33),
        (made(b0=98, b4=2), 0.99, 768),  # half way from 512 to 1024
        (made(b0=1, b16=99), 0.99, 2_097_152),
        (made(b15=1), 1.0, 2_097_152),
    ],
)
def test_quantiles(found: Handshakes, part: float, us: int | None) -> None:
    assert found.quantile_us(part) == us


def test_two_together() -> None:
    one = Handshakes((1, *[0] * 16), sum_us=5, refused=1, lost=2, again=3, failing=4)
    both = one.plus(Handshakes((2, *[0] * 15, 1), sum_us=6, refused=10, lost=20, again=30, failing=3))
    assert both == Handshakes((3, *[0] * 15, 1), sum_us=11, refused=11, lost=22, again=33, failing=4)
    assert both.done == 4
