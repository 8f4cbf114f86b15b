"""The open descriptors of this process, to check that a call left none."""

from __future__ import annotations

import gc
import os
from pathlib import Path

FOLDER = Path("/proc/self/fd")


def open_files() -> set[tuple[str, str]]:
    """Return each descriptor's number and its file.

    Descriptors that an earlier test left to the garbage collector are closed first. Some may be closed later, in another thread;
    so compare by `<=` (nothing is new), not by `==`.
    """
    gc.collect()
    found = set()
    for name in os.listdir(FOLDER):
        try:
            found.add((name, os.readlink(FOLDER / name)))
        except FileNotFoundError:  # of the listing itself
            continue
    return found
