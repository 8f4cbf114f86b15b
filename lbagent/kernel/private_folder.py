"""Folders that only their owner may look into."""

from __future__ import annotations

import os


def make_private(folder: str) -> None:
    """Make a folder and what is missing above it, each with mode 0700; os.makedirs gives that mode to the last one only.

    What is there already keeps its mode. Raises OSError.
    """
    missing = []
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:
            continue  # another thread was faster
    if not os.path.isdir(folder):
        raise NotADirectoryError(20, os.strerror(20), folder)
