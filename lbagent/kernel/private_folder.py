"""Folders and files that only their owner may read, and the process that holds a lock on one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_private(folder: str) -> None:
    """Make a folder and its missing ancestors, each with mode 0700; os.makedirs gives that mode to the last one only.

    An existing folder keeps its mode. Raises OSError.
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
            continue  # another thread created it
    if not os.path.isdir(folder):
        raise NotADirectoryError(20, os.strerror(20), folder)


def replace_private(path: str, data: bytes) -> None:
    """Replace a file whole, with mode 0600: a reader sees the old one or the new one, also after a crash. Raises OSError."""
    draft = path + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)  # another mode, or a link by another user
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    handle = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)  # the rename itself
    finally:
        os.close(handle)


def unwritable(folder: str) -> str:
    """Return why nothing can be written below a folder, which may not exist yet; '' when it can."""
    path = os.path.abspath(folder)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        return f"cannot be used ({path} is not a folder)"
    return "" if os.access(path, os.W_OK | os.X_OK) else f"cannot be written ({path})"


def holder(fd: int) -> int:
    """Return the pid that holds an flock on the file behind `fd`; 0 when none is visible (another pid namespace)."""
    found = os.fstat(fd)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        parts = line.split()
        if len(parts) >= 6 and parts[1] == "FLOCK" and parts[5] == wanted:
            return int(parts[4])
    return 0
