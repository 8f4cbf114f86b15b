"""When to try again: seconds that grow, with jitter, for ever."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

FIRST_S, FACTOR, MOST_S = 0.1, 2.0, 30.0
JITTER = 0.2  # a fifth: many agents with one trouble do not knock at once


def delays(
    first_s: float = FIRST_S, most_s: float = MOST_S, rng: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yield seconds to wait until the next try: 0.1, 0.2, 0.4, ... 30, each give or take a tenth."""
    delay = first_s
    while True:
        yield delay * (1 - JITTER / 2 + JITTER * rng())
        delay = min(delay * FACTOR, most_s)
