"""A client with continuous requests: records the time of each, and the longest gap."""

from __future__ import annotations

import itertools
import time
from functools import partial
from types import TracebackType
from typing import Self

from tests.lab import traffic
from tests.lab.netns import Namespace

WORKERS, PAUSE_S = 4, 0.01


class WatchedClient:
    """Requests to one address, each on a new connection, from some workers at a time; a context manager."""

    def __init__(self, name: str, space: Namespace, vip: str, timeout_s: float = traffic.TIMEOUT_S) -> None:
        """`name` is for messages; a request that takes longer than `timeout_s` has failed."""
        self.name, self.vip, self._timeout_s = name, vip, timeout_s
        self._answers: list[float] = []
        self._failures: list[float] = []  # when they began
        self.load = traffic.Load(space, [partial(self._ask)], WORKERS, PAUSE_S)

    def _ask(self) -> traffic.Answer:
        start = time.monotonic()
        try:
            answer = traffic.http_get(self.vip, 80, timeout_s=self._timeout_s)
        except OSError:
            self._failures.append(start)
            raise
        self._answers.append(time.monotonic())
        return answer

    def __enter__(self) -> Self:
        self.load.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.load.__exit__(kind, value, where)

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two answers of any workers."""
        answers = sorted(self._answers)
        return max((after - before for before, after in itertools.pairwise(answers)), default=0.0)

    def failing_s(self, since: float) -> float:
        """Return how long after a time the last failed request began; 0 for none."""
        return max((start - since for start in self._failures if start > since), default=0.0)

    @property
    def summary(self) -> str:
        tally = self.load.tally
        return f"{self.name}: {tally.total} requests answered, {len(tally.failures)} failed, longest gap {self.longest_gap_s * 1e3:.0f} ms"
