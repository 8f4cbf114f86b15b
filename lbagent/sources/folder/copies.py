"""Copies of the last good manifests, so that a file that is broken while the agent restarts keeps its objects.

Written in a thread, a moment after the file was read: without a copy such a file has no objects until it is good again. A copy
that cannot be updated is deleted: no copy is better than an outdated one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Mapping

from lbagent.kernel.private_folder import make_private
from lbagent.textfile.read_text import SUFFIXES, UnreadableManifest, read_text

log = logging.getLogger(__name__)
DELAY_S = 1.0  # delay after reading a good file
COPY_RETRY_DELAY_S = 10.0  # retry interval of copies that could not be written
DRAFT = ".new"
Signature = tuple[int, int, int, int]  # device, inode, mtime in ns, size


def signature_of(path: str) -> Signature | None:
    """Return the identity of a file's contents; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


class ManifestCopies:
    """A folder of copies, by the names of the manifests."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._noted: dict[str, Signature | None] = {}  # path -> identity of the last good contents; None = deleted
        self._failed: Mapping[str, str] = {}  # path -> why its copy is not up to date
        self._is_behind = asyncio.Event()

    @property
    def folder(self) -> str:
        """The folder of the copies."""
        return self._folder

    def failure(self) -> str:
        """Return which copies are not up to date, and why; '' if all are."""
        if not self._failed:
            return ""
        path, why = next(iter(self._failed.items()))
        more = f", and {len(self._failed) - 1} more" if len(self._failed) > 1 else ""
        return (
            f"copies of good manifests cannot be written to {self._folder}: {os.path.basename(path)}: {why}{more};"
            " a file of these that is broken or away at a restart has no objects"
        )

    def recall(self, path: str) -> str | None:
        """Return the last good text of a manifest, if there is a copy."""
        try:
            return read_text(self._copy(path))
        except UnreadableManifest:
            return None

    def names(self) -> list[str]:
        """Return the names of the manifests with a copy, sorted."""
        try:
            return sorted(name for name in os.listdir(self._folder) if name.endswith(SUFFIXES))
        except OSError:
            return []

    def note(self, path: str, signature: Signature | None) -> None:
        """Record that a manifest is good now, or (None) that it was deleted."""
        self._noted[path] = signature
        self._is_behind.set()

    async def run(self) -> None:
        """Copy good files a moment after they were read, once the others are read, too, until cancelled."""
        await asyncio.to_thread(self.remove_drafts)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COPY_RETRY_DELAY_S if self._noted else None):
                    await self._is_behind.wait()
            await asyncio.sleep(DELAY_S)
            self._is_behind.clear()
            noted = self.take()
            failed = await asyncio.to_thread(self.save, noted)
            self._take_failures(dict(noted), failed)

    def _take_failures(self, tried: Mapping[str, Signature | None], failed: Mapping[str, str]) -> None:
        """Retry failed copies, unless the file was recorded again meanwhile."""
        for path in failed:
            self._noted.setdefault(path, tried[path])
        if failed and not self._failed:
            log.error("copies of manifests could not be written", extra={"folder": self._folder, "files": len(failed)})
        self._failed = failed

    def take(self) -> list[tuple[str, Signature | None]]:
        """Return the recorded files for `save`, and forget them."""
        noted, self._noted = list(self._noted.items()), {}
        return noted

    def remove_drafts(self) -> None:
        """Remove the remains of an agent that ended while it wrote a copy."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                if name.endswith(DRAFT):
                    os.unlink(os.path.join(self._folder, name))

    def save(self, noted: Iterable[tuple[str, Signature | None]]) -> dict[str, str]:
        """Update the copies; called in a thread. Return the files whose copies are outdated, and why."""
        failed: dict[str, str] = {}
        for path, signature in noted:
            try:
                make_private(self._folder)
                self._save(path, signature)
            except OSError as error:
                failed[path] = error.strerror or str(error)
                if kept := self._delete_outdated(path, signature):
                    failed[path] += f" (the outdated copy cannot be deleted: {kept})"
        with contextlib.suppress(OSError):
            _sync(self._folder)  # the renames
        return failed

    def _save(self, path: str, signature: Signature | None) -> None:
        copy = self._copy(path)
        if signature is None:
            if os.path.lexists(copy):
                os.unlink(copy)
            return
        if self._is_current(copy, signature):
            return
        try:
            text = read_text(path)
        except UnreadableManifest:
            return
        draft = f"{copy}{DRAFT}"
        try:
            with open(draft, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.utime(draft, ns=(signature[2], signature[2]))
            if signature_of(path) == signature:  # else its contents are not those that were good
                os.replace(draft, copy)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft)

    @staticmethod
    def _is_current(copy: str, signature: Signature) -> bool:
        known = signature_of(copy)
        return known is not None and known[2] == signature[2]

    def _delete_outdated(self, path: str, signature: Signature | None) -> str:
        """Delete a copy that could not be updated; return why that failed."""
        copy = self._copy(path)
        if signature is not None and self._is_current(copy, signature):
            return ""
        try:
            os.unlink(copy)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _copy(self, path: str) -> str:
        return os.path.join(self._folder, os.path.basename(path))


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
