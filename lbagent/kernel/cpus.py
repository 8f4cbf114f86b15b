"""The highest possible number of processors: the size of the kernel's per-CPU data."""

from __future__ import annotations

import os
from functools import cache


@cache
def possible_cpus() -> int:
    """Return how many values a per-CPU entry has: the highest number a CPU may get, plus 1."""
    try:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as stream:
            last = stream.read().strip().split(",")[-1].split("-")[-1]
    except OSError:  # no sysfs: a sandbox, where no map is made
        return os.cpu_count() or 1
    return int(last) + 1
