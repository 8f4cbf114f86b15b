"""One agent on one --bpffs: an flock on the pin directory, which the kernel lets go with the process, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbagent.errors import Conflict
from lbagent.kernel.kernel_error import kernel_error
from lbagent.kernel.private_folder import holder


class AgentLock:
    """Held from `take` until `release` or the end of the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1

    def take(self) -> None:
        """Take the lock. Raises Conflict naming the pid of the agent that has it."""
        try:
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise kernel_error("lock", error.errno or 0, str(self._directory)) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = holder(fd)
            os.close(fd)
            who = f"pid {pid}" if pid else "another process"
            raise Conflict(
                f"an agent already runs on {self._directory} ({who}); nothing was changed; stop it, or give another --bpffs"
            ) from None
        self._fd = fd

    @property
    def is_held(self) -> bool:
        """Whether `take` succeeded, and `release` has not been called."""
        return self._fd >= 0

    @property
    def opened(self) -> Path:
        """The locked folder by its descriptor: the same one also when a mount is over it, or its own mount is gone."""
        return Path(f"/proc/self/fd/{self._fd}")

    @contextmanager
    def moving_to(self, directory: Path) -> Iterator[None]:
        """Lock another folder as well, and that one alone once the block has succeeded. Raises as `take`."""
        other = AgentLock(directory)
        other.take()
        try:
            yield
        except BaseException:
            other.release()
            raise
        self.become(other)

    def become(self, other: AgentLock) -> None:
        """Let go of the folder, and hold what `other` holds in its place."""
        self.release()
        self._directory, self._fd = other._directory, other._fd
        other._fd = -1

    def release(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
