"""The kernel's tick rate, against jiffies counted over half a second."""

from __future__ import annotations

import os
import time

import pytest

from lbagent.kernel import jiffies


def moment() -> tuple[int, float]:
    """Return jiffies and the time at which they were read, to a millisecond."""
    while True:
        before = time.monotonic()
        count = jiffies.jiffies()
        after = time.monotonic()
        if after - before < 0.001:
            return count, after


@pytest.mark.root
@pytest.mark.bpf
def test_the_tick_rate_is_what_jiffies_count() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    first, start = moment()
    time.sleep(0.5)
    last, end = moment()
    assert (last - first) / (end - start) == pytest.approx(jiffies.hz(), rel=0.04)
