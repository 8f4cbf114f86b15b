"""The TCP handshakes of a backend, as far as they were timed: how long they took, and how they ended. Pure."""

from __future__ import annotations

from itertools import accumulate

from msgspec import Struct

BOUNDS_US = tuple(1 << n for n in range(6, 22))  # of the buckets, in microseconds; one more is without a bound


class Handshakes(Struct, frozen=True):
    """`buckets` are of BOUNDS_US and beyond, not cumulative. `lost`: without an answer. `failing`: in a row, until now."""

    buckets: tuple[int, ...] = (0,) * (len(BOUNDS_US) + 1)
    sum_us: int = 0
    refused: int = 0
    lost: int = 0
    again: int = 0  # SYNs that came once more
    failing: int = 0

    @property
    def done(self) -> int:
        """How many got a SYN-ACK."""
        return sum(self.buckets)

    @property
    def any(self) -> bool:
        """Whether one was timed."""
        return bool(self.done or self.refused or self.lost or self.again)

    def quantile_us(self, part: float) -> int | None:
        """Return a time that `part` of those that are done did not exceed, None without one.

        Within a bucket it is interpolated, as Prometheus does; beyond the last bound it is that bound.
        """
        rank = part * self.done
        if not rank:
            return None
        for number, (below, count) in enumerate(zip((0, *accumulate(self.buckets)), self.buckets, strict=False)):
            if below + count >= rank and number < len(BOUNDS_US):
                low = BOUNDS_US[number - 1] if number else 0
                return round(low + (BOUNDS_US[number] - low) * (rank - below) / count)
        return BOUNDS_US[-1]

    def plus(self, other: Handshakes) -> Handshakes:
        """Return both together: of a backend with several source addresses of the node."""
        return Handshakes(
            tuple(map(sum, zip(self.buckets, other.buckets, strict=True))),
            self.sum_us + other.sum_us,
            self.refused + other.refused,
            self.lost + other.lost,
            self.again + other.again,
            max(self.failing, other.failing),
        )
