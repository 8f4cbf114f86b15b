"""A histogram for Prometheus: how many values are up to each bound, and the number and sum of all values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """Counts values; `bounds` are the upper ends of its buckets, ascending."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)  # the last one: values above every bound

    @classmethod
    def of(cls, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
        """Return one with these numbers of values, one more than bounds, whose sum is `total`."""
        made = cls(bounds)
        made._counts, made.sum = list(counts), total
        return made

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield (bound, number of values up to it), infinity last."""
        total = 0
        for bound, number in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += number
            yield bound, total
