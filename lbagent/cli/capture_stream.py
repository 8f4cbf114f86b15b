"""A capture that grows while it is made: a file of mode 0600, or stdout. A file that ends early, by a full disk, stays readable."""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from lbagent.cli.output_file import IsOurs, require_writable
from lbagent.errors import ConfigError, LbError

_SPARE_BLOCKS = 64  # last ones whose place the statistics may take


class CaptureStream:
    """Where blocks go. Every block is whole in the file, or not in it."""

    def __init__(self, path: str, option: str, is_ours: IsOurs, *, overwrite: bool) -> None:
        """Open a file, or stdout for `-`. Raises ConfigError, LbError."""
        self.failure = ""
        self.name = "stdout" if path == "-" else path
        self._is_file = path != "-"
        self._size = 0
        self._last: deque[bytes] = deque(maxlen=_SPARE_BLOCKS)
        if not self._is_file:
            sys.stdout.flush()
            self._handle = sys.stdout.fileno()
            if os.isatty(self._handle):
                raise ConfigError(
                    f"{option} -: stdout is a terminal; give a file, or pipe it, like `{option} - | tcpdump -r -`"
                )
            return
        require_writable(path, option, "capture", is_ours, overwrite=overwrite)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)  # a reader of the earlier one keeps it
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(path, flags, 0o600)
        except OSError as error:
            raise LbError(f"{path}: {error.strerror}; nothing was captured") from None

    def write(self, blocks: Sequence[bytes]) -> int:
        """Write blocks; return how many of them are in the file, whole. Fewer than all: the disk is full, as `failure` says.

        Raises BrokenPipeError where the reader of stdout has left.
        """
        self.failure = ""
        data = b"".join(blocks)
        done = self._write(data)
        if done == len(data):
            self._size += done
            self._last += blocks[-_SPARE_BLOCKS:]
            return len(blocks)
        whole = kept = 0
        while kept + len(blocks[whole]) <= done:
            kept += len(blocks[whole])
            whole += 1
        self._size += kept
        self._last += blocks[:whole][-_SPARE_BLOCKS:]
        self._cut()
        return whole

    def begin(self, head: bytes) -> None:
        """Write the first block, which is never removed."""
        if self.write([head]):
            self._last.clear()

    def end(self, statistics: Callable[[Sequence[bytes]], bytes]) -> None:
        """Write the statistics, given the last blocks, which had to be removed for them, and close the file."""
        removed: list[bytes] = []
        while True:
            data = statistics(removed)
            if self._write(data) == len(data) or not self._is_file:
                break
            if not self._last:  # without them, but whole
                self._cut()
                break
            removed.append(self._last.pop())
            self._size -= len(removed[-1])
            self._cut()
        if self._is_file:
            os.close(self._handle)

    def _write(self, data: bytes) -> int:
        """Return how many bytes were written; fewer than all with `failure`."""
        done = 0
        try:
            while done < len(data):
                done += os.write(self._handle, memoryview(data)[done:])
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            self.failure = error.strerror or str(error)
        return done

    def _cut(self) -> None:
        """Remove what is behind the last whole block."""
        if self._is_file:
            os.ftruncate(self._handle, self._size)
            os.lseek(self._handle, self._size, os.SEEK_SET)
