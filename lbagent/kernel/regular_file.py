"""Files that an operator names or puts into a folder: regular files only.

open(2) of a named pipe waits for a writer without limit, a device may act when it is opened. Neither may stop a process that
reads its configuration. /dev/null counts as an empty regular file.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

NOT_REGULAR = "not a regular file"
_NULL = os.makedev(1, 3)


class NotRegular(OSError):
    """A pipe, a socket or a device."""


def open_regular(path: str) -> BinaryIO:
    """Return a regular file, open for reading; the call never waits. Raises OSError; IsADirectoryError for a folder."""
    check_regular(path)  # before the open, which some devices treat as a command
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise (_not_regular(path) if error.errno == errno.ENXIO else error) from None  # a socket
    try:
        _check(os.fstat(handle), path)  # another file may have replaced it
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str, max_bytes: int = -1) -> bytes:
    """Return the first `max_bytes` of a regular file, all of it for -1; the call never waits. Raises OSError as `open_regular`."""
    with open_regular(path) as file:
        return file.read(max_bytes)


def check_regular(path: str) -> None:
    """Check a file that a library opens by its path. Raises OSError as `open_regular`."""
    _check(os.stat(path), path)


def _check(found: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not (stat.S_ISREG(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL)):
        raise _not_regular(path)


def _not_regular(path: str) -> OSError:
    return NotRegular(errno.EINVAL, NOT_REGULAR, path)
