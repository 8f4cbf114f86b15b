"""One `apply` or `destroy` at a time on one state: an flock on a file beside it, which ends with the process in any case."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from lbagent.errors import LbError, Refused
from lbagent.kernel.private_folder import holder

SUFFIX = ".lock"


@contextlib.contextmanager
def state_locked(state_path: str) -> Iterator[None]:
    """Hold the lock; take it before the state is read. Raises Refused with its file and the process that holds it.

    If no file can be created, the state cannot be written either, which is reported before any step: no lock is needed.
    """
    path = os.path.realpath(state_path) + SUFFIX  # of a symbolic link the target is locked
    handle = _taken(path)
    try:
        yield
    finally:
        if handle >= 0:
            with contextlib.suppress(OSError):
                os.unlink(path)  # while it is locked: see _taken
            os.close(handle)


def _taken(path: str) -> int:
    """Return the descriptor of the locked file; -1 if none can be created."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if not os.path.lexists(path):
                return -1
            raise LbError(f"{path}: {error.strerror}; nothing was changed") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = holder(handle)
            os.close(handle)
            who = f"pid {pid}" if pid else "another process"
            raise Refused(
                f"{path} is locked by {who}, which changes the same hosts; nothing was changed; retry when it has ended"
            ) from None
        if _is_at(handle, path):
            return handle
        os.close(handle)  # its holder removed it in the meantime


def _is_at(handle: int, path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    return False
