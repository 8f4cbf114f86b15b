"""What failed, when and for which backend: a slow answer is allowed only with an outage."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

EVERYONE = "*"  # the clients' own side was down
# TCP doubles its waits: after an outage of d seconds a connection retransmits at most d seconds after its end, and then a
# neighbour must be resolved, on a busy machine.
RECOVERY_S = 3.0


@dataclass
class Outage:
    """A period in which one backend (or the client's side) was unreachable without a fault of the load balancer."""

    who: str
    start: float
    end: float = float("inf")


class Outages:
    """All outages of a run; used by several threads."""

    def __init__(self) -> None:
        """Start with none."""
        self._all: list[Outage] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def of(self, who: str) -> Iterator[None]:
        """Record an outage around a block."""
        outage = Outage(who, time.monotonic())
        with self._lock:
            self._all.append(outage)
        try:
            yield
        finally:
            outage.end = time.monotonic()

    def excuse(self, who: str, start: float, end: float) -> float:
        """Return how many seconds an exchange with `who` (EVERYONE: any backend) from `start` to `end` may have taken.

        Each outage during it, or one that ended just before it began, allows twice its length and RECOVERY_S.
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
