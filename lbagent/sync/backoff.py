"""Retry times: growing pauses with jitter, without limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from msgspec import Struct

from lbagent.errors import LbError

FIRST_S, FACTOR, MAX_S = 0.1, 2.0, 30.0
JITTER = 0.2  # a fifth: many agents with the same failure do not retry at the same moment


def delays(first_s: float = FIRST_S, max_s: float = MAX_S, rng: Callable[[], float] = random.random) -> Iterator[float]:
    """Yield seconds to wait until the next attempt: 0.1, 0.2, 0.4, ... 30, each plus or minus a tenth."""
    delay = first_s
    while True:
        yield delay * (1 - JITTER / 2 + JITTER * rng())
        delay = min(delay * FACTOR, max_s)


class Failure(Struct):
    """A failure that recurred with each pause taken from `pauses`, and the time of the next retry (monotonic seconds)."""

    error: LbError
    retry_at: float
    pauses: Iterator[float]


def failed_again(before: Failure | None, error: LbError, now: float, first: Callable[[], Iterator[float]]) -> Failure:
    """Return the failure that follows `before`, after a longer pause; `first` returns the pauses if there is none."""
    pauses = before.pauses if before else first()
    return Failure(error, now + next(pauses), pauses)
