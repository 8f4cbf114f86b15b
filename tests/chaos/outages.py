"""What was broken, when and for whom: the excuse that a slow answer needs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

EVERYONE = "*"  # the clients' own side was down
# TCP doubles its waits: a connection that met an outage of d seconds asks again at most d seconds after its end, and then a
# neighbour must be resolved, on a machine with other work.
RECOVERY_S = 3.0


@dataclass
class Outage:
    """A time in which one backend (or the client's side) could not be reached, by no fault of the load balancer's."""

    who: str
    start: float
    end: float = float("inf")


class Outages:
    """All outages of a run; used by several threads."""

    def __init__(self) -> None:
        """Begin with none."""
        self._all: list[Outage] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def of(self, who: str) -> Iterator[None]:
        """Note an outage around a block."""
        outage = Outage(who, time.monotonic())
        with self._lock:
            self._all.append(outage)
        try:
            yield
        finally:
            outage.end = time.monotonic()

    def excuse(self, who: str, start: float, end: float) -> float:
        """Return how many seconds an exchange with `who` (EVERYONE: any backend) from `start` to `end` may have taken.

        Each outage that it met, or that ended just before it began, excuses twice its length and RECOVERY_S.
        """
        with self._lock:
            met = [
                item
                for item in self._all
                if self._concerns(item, who) and item.start < end and item.end + RECOVERY_S > start
            ]
        return sum(2 * (min(item.end, end) - item.start) + RECOVERY_S for item in met)

    @staticmethod
    def _concerns(item: Outage, who: str) -> bool:
        return EVERYONE in (item.who, who) or item.who == who
