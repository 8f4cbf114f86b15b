"""Texts made by two processes, for output whose making takes longer than its printing: a million flows."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO

from lbagent.errors import LbError

_LENGTH = struct.Struct("=Q")
_BUFFER_BYTES = 1 << 20


def in_two_processes(texts_of: Callable[[int, int], Iterator[str]], what: str) -> Iterator[str]:
    """Yield the texts of `texts_of(0, 2)` and of `texts_of(1, 2)` in turns; another process makes the latter.

    Without a second processor `texts_of(0, 1)` makes them all. Raises LbError if the other process fails: `what` it makes.
    """
    if len(os.sched_getaffinity(0)) < 2:
        yield from texts_of(0, 1)
        return
    receiving, sending = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        os.close(receiving)
        _send_all(sending, texts_of)
    os.close(sending)
    try:
        with open(receiving, "rb", buffering=_BUFFER_BYTES) as other:
            for text in texts_of(0, 2):
                yield text
                yield from _received(other)
            while found := list(_received(other)):
                yield from found
    finally:  # the other process ends, as no one reads its texts
        _, status = os.waitpid(pid, 0)
    if status:
        raise LbError(f"the process that reads the second half of {what} failed")


def _send_all(sending: int, texts_of: Callable[[int, int], Iterator[str]]) -> None:
    """Write the texts, each with its length, and end this process."""
    status = 1
    try:
        with open(sending, "wb", buffering=_BUFFER_BYTES) as out:
            for text in texts_of(1, 2):
                data = text.encode()
                out.write(_LENGTH.pack(len(data)) + data)
                out.flush()
        status = 0
    finally:
        os._exit(status)  # without the exit handlers of the process that was forked


def _received(other: BinaryIO) -> Iterator[str]:
    """Yield the next text, none at the end."""
    head = other.read(_LENGTH.size)
    if len(head) == _LENGTH.size:
        yield other.read(_LENGTH.unpack(head)[0]).decode()
