"""Files that a command writes for an operator: mode 0600, and no file of another kind is overwritten without being told."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress

from lbagent.errors import ConfigError, LbError
from lbagent.kernel.regular_file import read_regular

_HEAD_BYTES = 64
IsOurs = Callable[[bytes], bool]  # of the first bytes of a file


def require_writable(path: str, option: str, kind: str, is_ours: IsOurs, *, overwrite: bool) -> None:
    """Raise ConfigError where a file must not be written: no folder, no regular file, or a file that is no `kind` of lbagent."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ConfigError(f"{option} {path}: no such folder {folder}; nothing was written")
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isfile(path):
        what = "a folder" if os.path.isdir(path) else "no regular file"
        raise ConfigError(f"{option} {path}: is {what}; nothing was written")
    try:
        head = b"" if overwrite else read_regular(path, _HEAD_BYTES)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}; nothing was written") from None
    if not overwrite and not is_ours(head):
        raise ConfigError(
            f"{option} {path}: this file is no {kind} of lbagent; nothing was written; --overwrite replaces it"
        )


def replace_whole(path: str, data: bytes) -> None:
    """Write a file whole, mode 0600: until it is complete, a file that was there stays. Raises LbError."""
    folder = os.path.dirname(path) or "."
    draft = ""
    try:
        handle, draft = tempfile.mkstemp(prefix=".lbagent-", dir=folder)  # mode 0600
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(draft, path)
    except OSError as error:
        if draft:
            with suppress(OSError):
                os.unlink(draft)
        raise LbError(f"{path}: {error.strerror}; nothing was written") from None
    except BaseException:  # Ctrl-C
        if draft:
            with suppress(OSError):
                os.unlink(draft)
        raise
