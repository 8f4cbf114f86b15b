"""Copies of manifests as they were when they were good, so that a file broken while the agent restarts keeps its objects.

Written in a thread, a moment after the file was read: without a copy such a file has no objects until it is good again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from lbagent.kernel.private_folder import make_private
from lbagent.sources.manifest.read_text import SUFFIXES, UnreadableManifest, read_text

DELAY_S = 1.0  # good files are copied so long after they were read
Signature = tuple[int, int, int, int]  # device, inode, mtime in ns, size


def signature_of(path: str) -> Signature | None:
    """Return what changes when a file does; None when it cannot be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


class ManifestCopies:
    """A folder of copies, by the names of the manifests."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._noted: dict[str, Signature | None] = {}  # path -> as it was when it was good; None = deleted
        self._is_behind = asyncio.Event()

    def recall(self, path: str) -> str | None:
        """Return the last good text of a manifest, if there is a copy."""
        try:
            return read_text(self._copy(path))
        except UnreadableManifest:
            return None

    def names(self) -> list[str]:
        """Return the names of the manifests there is a copy of, sorted."""
        try:
            return sorted(name for name in os.listdir(self._folder) if name.endswith(SUFFIXES))
        except OSError:
            return []

    def note(self, path: str, signature: Signature | None) -> None:
        """Say that a manifest is good now, or (None) that it was deleted."""
        self._noted[path] = signature
        self._is_behind.set()

    async def run(self) -> None:
        """Copy good files a moment after they were read, when reading the others is done, until cancelled."""
        while True:
            await self._is_behind.wait()
            await asyncio.sleep(DELAY_S)
            self._is_behind.clear()
            await asyncio.to_thread(self.save, self.take())

    def take(self) -> list[tuple[str, Signature | None]]:
        """Return what was noted, for `save`, and forget it."""
        noted, self._noted = list(self._noted.items()), {}
        return noted

    def save(self, noted: Iterable[tuple[str, Signature | None]]) -> None:
        """Bring the copies up to date; called in a thread. What cannot be written is left."""
        try:
            make_private(self._folder)
            for path, signature in noted:
                self._save(path, signature)
        except OSError:
            return

    def _save(self, path: str, signature: Signature | None) -> None:
        copy = self._copy(path)
        if signature is None:
            if os.path.lexists(copy):
                os.unlink(copy)
            return
        known = signature_of(copy)
        if known and known[2] == signature[2]:
            return
        try:
            text = read_text(path)
        except UnreadableManifest:
            return
        draft = f"{copy}.new"
        with open(draft, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.utime(draft, ns=(signature[2], signature[2]))
        if signature_of(path) == signature:  # else it is not what was found to be good
            os.replace(draft, copy)
        else:
            os.unlink(draft)

    def _copy(self, path: str) -> str:
        return os.path.join(self._folder, os.path.basename(path))
