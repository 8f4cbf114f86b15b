"""Files on a host, written atomically: first a draft beside the file, then a rename. The class here is for this host.

A draft is a separate file, so that HAProxy can check it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import Protocol

from lbagent.errors import LbError, Refused
from lbagent.kernel.regular_file import read_regular

CONTAINER_USER = 65534  # may read the mounted folder, and nothing else of the host
FILE_MODE, FOLDER_MODE, PARENT_MODE = 0o600, 0o700, 0o755
MAX_BYTES = 1 << 20  # a longer file is not lbagent's


class HostFiles(Protocol):
    """The files of one host. A failure is an LbError that names host and path."""

    async def read(self, path: str) -> str | None:
        """Return a file's text, None if it does not exist."""

    async def write_draft(self, path: str, text: str, owner: int) -> str:
        """Write the draft of a file, 0600, for this user; return its path. A missing folder is created (0700, same user)."""

    async def rename(self, draft: str, path: str) -> None:
        """Replace the file by its draft."""

    async def remove(self, path: str) -> bool:
        """Remove a file, which may not exist. Returns whether it is removed: a container runtime may be unable to."""


def draft_of(path: str) -> str:
    """Return the path of a file's draft: hidden, in the same folder, so that a rename is one step."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.lbagent-new")


def missing_folders(path: str) -> list[str]:
    """Return the folders above a file, the outermost first."""
    folders: list[str] = []
    while (folder := os.path.dirname(path)) not in ("", "/"):
        folders.insert(0, folder)
        path = folder
    return folders


def is_a_folder(host: str, path: str) -> Refused:
    """Return the error for a folder where a file belongs."""
    return Refused(f"{host}: {path} is a folder, and a file must be written there; nothing was changed")


def is_no_folder(host: str, path: str) -> Refused:
    """Return the error for a file where a folder belongs."""
    return Refused(f"{host}: {path} is a file, and a folder is needed there; nothing was changed")


class LocalFiles:
    """The files of this host, for a process that may write them."""

    host = "direct"

    async def read(self, path: str) -> str | None:
        """See HostFiles."""
        return await asyncio.to_thread(self._read, path)

    def _read(self, path: str) -> str | None:
        try:
            return read_regular(path, MAX_BYTES).decode(errors="replace")
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            raise is_a_folder(self.host, path) from None
        except NotADirectoryError:
            raise is_no_folder(self.host, _file_above(path)) from None
        except OSError as error:
            raise LbError(f"{self.host}: {path}: {error.strerror}") from None

    async def write_draft(self, path: str, text: str, owner: int) -> str:
        """See HostFiles."""
        return await asyncio.to_thread(self._write_draft, path, text, owner)

    def _write_draft(self, path: str, text: str, owner: int) -> str:
        if os.path.isdir(path):
            raise is_a_folder(self.host, path)
        draft = draft_of(path)
        try:
            self._make_folders(path, owner)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)  # left by a killed process
            self._write(draft, text, owner)
        except NotADirectoryError:
            raise is_no_folder(self.host, _file_above(path)) from None
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise LbError(f"{self.host}: {path}: {error.strerror}; the file is as it was") from None
        return draft

    def _make_folders(self, path: str, owner: int) -> None:
        *above, last = missing_folders(path) or ["/"]
        for folder in above:
            if not os.path.lexists(folder):
                os.makedirs(folder, PARENT_MODE, exist_ok=True)  # another step may create it at the same time
        if not os.path.lexists(last):
            os.makedirs(last, FOLDER_MODE, exist_ok=True)
            os.chown(last, owner, owner)
        elif not stat.S_ISDIR(os.stat(last).st_mode):
            raise NotADirectoryError

    def _write(self, draft: str, text: str, owner: int) -> None:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with open(fd, "w", encoding="utf-8") as file:
            os.fchown(fd, owner, owner)
            file.write(text)
            file.flush()
            os.fsync(fd)

    async def rename(self, draft: str, path: str) -> None:
        """See HostFiles."""
        try:
            os.rename(draft, path)
        except IsADirectoryError:
            raise is_a_folder(self.host, path) from None
        except OSError as error:
            raise LbError(f"{self.host}: {path}: {error.strerror}; the file is as it was") from None

    async def remove(self, path: str) -> bool:
        """See HostFiles."""
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except IsADirectoryError:
            raise is_a_folder(self.host, path) from None
        except OSError as error:
            raise LbError(f"{self.host}: {path}: {error.strerror}; it was not removed") from None
        return True


def _file_above(path: str) -> str:
    """Return the file that is in the place of a folder of the path."""
    return next((each for each in missing_folders(path) if os.path.lexists(each) and not os.path.isdir(each)), path)
