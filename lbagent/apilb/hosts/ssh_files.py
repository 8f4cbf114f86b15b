"""Files on a host by sftp, with OpenSSH's rename that replaces."""

from __future__ import annotations

import contextlib
import stat
from typing import TYPE_CHECKING, cast

from lbagent.apilb.hosts.host_files import (
    FILE_MODE,
    FOLDER_MODE,
    MAX_BYTES,
    PARENT_MODE,
    draft_of,
    is_a_folder,
    is_no_folder,
    missing_folders,
)
from lbagent.errors import HostUnreachable, LbError
from lbagent.kernel.regular_file import NOT_REGULAR

if TYPE_CHECKING:
    import asyncssh


class MayNot(LbError):
    """The login user has no permission to write there."""


class SshFiles:
    """See HostFiles."""

    def __init__(self, host: str, client: asyncssh.SFTPClient) -> None:
        self.host, self._client = host, client

    async def read(self, path: str) -> str | None:
        """See HostFiles."""
        with self._errors(path, ""):
            kind = await self._kind(path)
            if kind is None:
                return None
            if stat.S_ISDIR(kind):
                raise is_a_folder(self.host, path)
            if not stat.S_ISREG(kind):  # opening a named pipe would stop the SFTP server
                raise LbError(f"{self.host}: {path}: {NOT_REGULAR}")
            async with self._client.open(path, "rb") as file:
                return cast(bytes, await file.read(MAX_BYTES)).decode(errors="replace")

    async def write_draft(self, path: str, text: str, owner: int) -> str:
        """See HostFiles."""
        import asyncssh

        draft = draft_of(path)
        with self._errors(path, "; the file is as it was"):
            kind = await self._kind(path)
            if kind is not None and stat.S_ISDIR(kind):
                raise is_a_folder(self.host, path)
            await self._make_folders(path, owner)
            with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                await self._client.remove(draft)  # left by a killed process
            try:
                await self._write(draft, text, owner)
            except (asyncssh.SFTPError, OSError):
                with contextlib.suppress(asyncssh.SFTPError):
                    await self._client.remove(draft)
                raise
        return draft

    async def _write(self, draft: str, text: str, owner: int) -> None:
        import asyncssh

        async with self._client.open(draft, "xb", asyncssh.SFTPAttrs(permissions=FILE_MODE)) as file:
            await file.chown(owner, owner)
            await file.write(text.encode())
            with contextlib.suppress(asyncssh.SFTPOpUnsupported):
                await file.fsync()
        written = (await self._client.stat(draft)).size
        if written != len(text.encode()):  # a server that does not report a full disk
            raise OSError(0, "it could not be written whole (is the disk full?)")

    async def _make_folders(self, path: str, owner: int) -> None:

        folders = missing_folders(path)
        for folder in folders:
            kind = await self._kind(folder)
            if kind is None:
                await self._make_folder(folder, owner if folder == folders[-1] else None)
            elif not stat.S_ISDIR(kind):
                raise is_no_folder(self.host, folder)

    async def _make_folder(self, folder: str, owner: int | None) -> None:
        """Create a parent folder, or the last one, with its owner."""
        import asyncssh

        mode = PARENT_MODE if owner is None else FOLDER_MODE
        try:
            await self._client.mkdir(folder, asyncssh.SFTPAttrs(permissions=mode))
        except (asyncssh.SFTPFailure, asyncssh.SFTPFileAlreadyExists):
            if not stat.S_ISDIR(await self._kind(folder) or 0):  # another connection created it in the meantime
                raise
            return
        if owner is not None:
            await self._client.chown(folder, owner, owner)

    async def _kind(self, path: str) -> int | None:
        import asyncssh

        try:
            return (await self._client.stat(path)).permissions or 0
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            return None

    async def rename(self, draft: str, path: str) -> None:
        """See HostFiles."""
        with self._errors(path, "; the file is as it was"):
            await self._client.posix_rename(draft, path)

    async def remove(self, path: str) -> bool:
        """See HostFiles."""
        import asyncssh

        with self._errors(path, "; it was not removed"), contextlib.suppress(asyncssh.SFTPNoSuchFile):
            await self._client.remove(path)
        return True

    @contextlib.contextmanager
    def _errors(self, path: str, further: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
        import asyncssh

        try:
            yield
        except asyncssh.SFTPPermissionDenied:
            raise MayNot(f"{self.host}: {path}: the login user may not write there{further}") from None
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection) as error:
            raise HostUnreachable(f"{self.host}: {path}: {error.reason}") from None
        except asyncssh.SFTPFailure as error:  # sftp has one error code for a full disk and others
            raise LbError(f"{self.host}: {path}: {error.reason} (is the disk full?){further}") from None
        except asyncssh.SFTPError as error:
            raise LbError(f"{self.host}: {path}: {error.reason}{further}") from None
        except OSError as error:
            raise LbError(f"{self.host}: {path}: {error.strerror}{further}") from None
