"""How long to wait until the server is asked again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from lbagent.kube.kube_settings import KubeTiming


class Backoff:
    """Pauses that double, each with jitter; after a healthy time they begin anew."""

    def __init__(self, timing: KubeTiming, rng: Callable[[], float] = random.random) -> None:
        self._timing, self._rng = timing, rng
        self._delay_s = timing.first_pause_s
        self._resumed = -timing.healthy_s  # when the last pause ended, monotonic seconds

    def pause(self, *, is_failure: bool = True) -> float:
        """Return the seconds to wait. What is no failure (a watch that ends, a version that expired) waits only when it recurs."""
        now, first = time.monotonic(), self._timing.first_pause_s
        is_healthy = now - self._resumed >= self._timing.healthy_s
        if is_healthy:
            self._delay_s = first
        if is_healthy and not is_failure:
            self._resumed = now
            return 0.0
        seconds = min(self._delay_s * (1 + self._rng()), self._timing.max_pause_s)
        self._delay_s = min(self._delay_s * 2, self._timing.max_pause_s)
        self._resumed = now + seconds
        return seconds
