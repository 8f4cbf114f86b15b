"""inotify on the manifest folder, which may not exist yet and may be replaced by another one; does nothing without inotify."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from lbagent.errors import Unsupported
from lbagent.kernel.inotify import LOST, Event, Mask, Watch


class FolderWatch:
    """Follows the folder at a path."""

    def __init__(self, folder: str, *, use_inotify: bool) -> None:
        """Open inotify if the kernel has it; `follow` begins to watch the folder."""
        self._folder = folder
        self._watch = _open() if use_inotify else None
        self._followed: tuple[int, int] | None = None  # device and inode of the folder

    @property
    def is_available(self) -> bool:
        """Whether there is inotify: without it, the end of a write is not reported."""
        return self._watch is not None

    @property
    def is_following(self) -> bool:
        """Whether events of the folder arrive."""
        return self._followed is not None

    def follow(self) -> None:
        """Watch the folder that is at the path now."""
        if self._watch is None:
            return
        try:
            status = os.stat(self._folder)
            if self._followed != (status.st_dev, status.st_ino):
                self._watch.follow(self._folder)
                self._followed = (status.st_dev, status.st_ino)
        except OSError:
            self._followed = None

    def start(self, on_events: Callable[[list[Event]], None]) -> None:
        """Call back with the events of the folder, from the event loop. An event that `is_lost` comes once."""

        def read() -> None:
            events = list(self._watch.events()) if self._watch else []
            if any(is_lost(event) for event in events):
                self._followed = None
            on_events(events)

        if self._watch:
            asyncio.get_running_loop().add_reader(self._watch.fd, read)

    def close(self) -> None:
        """Stop the calls of `start`."""
        if self._watch:
            asyncio.get_running_loop().remove_reader(self._watch.fd)
            self._watch.close()


def is_lost(event: Event) -> bool:
    """Return whether an event reports that the folder is no longer watched: it was deleted, moved or unmounted."""
    return bool(event.mask & LOST)


def is_about_all_files(event: Event) -> bool:
    """Return whether an event may mean a change of every file.

    `..data`: Kubernetes replaces all files of a mounted ConfigMap by one link.
    """
    return bool(event.mask & Mask.Q_OVERFLOW) or event.name.startswith("..")


def is_complete(event: Event, path: str) -> bool:
    """Return whether the file of an event can be read: a new one when its writer closes it, a link at once."""
    return not event.mask & Mask.CREATE or _is_link(path)


def _open() -> Watch | None:
    try:
        return Watch()
    except Unsupported:
        return None


def _is_link(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return os.path.islink(path) or status.st_nlink > 1
