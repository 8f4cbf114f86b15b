"""When to try again: seconds that grow, with jitter, for ever."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from msgspec import Struct

from lbagent.errors import LbError

FIRST_S, FACTOR, MAX_S = 0.1, 2.0, 30.0
JITTER = 0.2  # a fifth: many agents with the same failure do not try again at the same moment


def delays(first_s: float = FIRST_S, max_s: float = MAX_S, rng: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield seconds to wait until the next try: 0.1, 0.2, 0.4, ... 30, each give or take a tenth."""
    delay = first_s
    while True:
        yield delay * (1 - JITTER / 2 + JITTER * rng())
        delay = min(delay * FACTOR, max_s)


class Failure(Struct):
    """Something that failed, as often as `pauses` was asked, and when it is tried again (monotonic seconds)."""

    error: LbError
    retry_at: float
    pauses: Iterator[float]


def failed_again(before: Failure | None, error: LbError, now: float, first: Callable[[], Iterator[float]]) -> Failure:
    """Return the failure that follows `before`, after a longer pause; `first` gives the pauses when there is none."""
    pauses = before.pauses if before else first()
    return Failure(error, now + next(pauses), pauses)
