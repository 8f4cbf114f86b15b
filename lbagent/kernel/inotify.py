"""inotify of one folder, through ctypes: names of changed files. Source: inotify(7).

The watch follows the inode: the caller must check periodically that the path still leads there.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import NamedTuple

from lbagent.errors import Unsupported


class Mask(IntFlag):
    """Events of include/uapi/linux/inotify.h that are requested here or that the kernel adds."""

    ATTRIB = 0x004
    CLOSE_WRITE = 0x008
    MOVED_FROM = 0x040
    MOVED_TO = 0x080
    CREATE = 0x100
    DELETE = 0x200
    DELETE_SELF = 0x400
    MOVE_SELF = 0x800
    UNMOUNT = 0x2000
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000


WANTED = (
    Mask.ATTRIB | Mask.CLOSE_WRITE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE
    | Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR
)  # fmt: skip
LOST = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED  # the watch no longer reports on the path
_HEADER = struct.Struct("iIII")  # wd, mask, cookie, length of the name
_READ_BYTES = 1 << 16
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC


class Event(NamedTuple):
    """A change of a name in the folder ('' = of the folder itself)."""

    mask: Mask
    name: str


class Watch:
    """An inotify instance for one folder. `fd` is readable when there are events.

    Raises Unsupported when the kernel or its limits allow no further one.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(_NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise Unsupported("inotify", "2.6.13", os.strerror(ctypes.get_errno()))
        self._number = -1

    def follow(self, folder: str) -> None:
        """Watch the folder to which the path leads now, and no other. Raises OSError."""
        number = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), int(WANTED))
        if number < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), folder)
        if self._number not in (-1, number):
            self._libc.inotify_rm_watch(self.fd, self._number)
        self._number = number

    def events(self) -> Iterator[Event]:
        """Yield the pending events, without waiting; those of an earlier watch are left out."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at + _HEADER.size <= len(data):
            number, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name = data[at : at + length].rstrip(b"\0")
            at += length
            if number in (self._number, -1):  # -1: the queue has overflowed
                yield Event(Mask(mask), os.fsdecode(name))

    def close(self) -> None:
        """Close the instance and its watch."""
        os.close(self.fd)
