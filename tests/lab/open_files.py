"""Which descriptors this process has open: that a call left none."""

from __future__ import annotations

import gc
import os
from pathlib import Path

FOLDER = Path("/proc/self/fd")


def open_files() -> set[tuple[str, str]]:
    """Return each descriptor's number and what it stands for.

    What an earlier test left to the garbage collector is closed first. It may still go later, in another thread; so compare by
    `<=` (nothing is new), not by `==`.
    """
    gc.collect()
    found = set()
    for name in os.listdir(FOLDER):
        try:
            found.add((name, os.readlink(FOLDER / name)))
        except FileNotFoundError:  # of the listing itself
            continue
    return found
