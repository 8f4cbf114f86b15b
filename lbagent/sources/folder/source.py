"""The manifest folder as a source: inotify, or polling where there is none.

A file that does not parse keeps its last good objects; a folder that is gone, unreadable or empty keeps all of them.
A file counts as deleted when it has been missing for a moment: some editors remove a file before they replace it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence

from lbagent.errors import TimedOut
from lbagent.kernel.inotify import Event
from lbagent.model.message import Message
from lbagent.objects.message_log import MessageLog
from lbagent.objects.records import FOLDER, ObjectChange, ObjectSnapshot
from lbagent.objects.source import Missed, OnChange
from lbagent.sources.folder.copies import ManifestCopies, Signature, signature_of
from lbagent.sources.folder.folder_watch import FolderWatch, is_about_all_files, is_complete, is_lost
from lbagent.sources.folder.manifest_files import ManifestFiles, is_manifest, manifest_names
from lbagent.textfile.read_text import UnreadableManifest, read_text

log = logging.getLogger(__name__)

POLL_S = 1.0  # without inotify, or while the folder is gone
RESCAN_INTERVAL_S = (
    10.0  # with inotify: for changes that it does not report (targets of links, a folder replaced by a link)
)
DELETE_DELAY_S = 0.1  # a file that is missing for so long counts as deleted
DELETE_DELAY_AFTER_LOSS_S = 2.0  # the same after the folder was gone or empty, and for as long as it keeps changing
YOUNG_NS = 100_000_000  # without inotify, a file that changed so recently may be incomplete
BATCH_S = 0.02  # duration of a step before the loop runs other tasks
MAX_LOOKS_AT_ONCE = 50  # files checked before the loop runs other tasks
LARGE = 32 << 10  # bytes, about BATCH_S of parsing
CATCH_UP_S = 1.0  # beside the next check of all files: what the source does not read within this time was missed
LOOK_S = 0.1  # between two looks whether it was read


class FolderSource:
    """The objects of a folder of manifests."""

    name = FOLDER
    remedy = "bring the folder back with its manifests; an empty List in a file means that there are none"
    held = 0

    def __init__(
        self,
        folder: str,
        *,
        last_good: str = "",
        use_inotify: bool = True,
        poll_s: float = POLL_S,
        rescan_s: float = RESCAN_INTERVAL_S,
    ) -> None:
        """`folder` need not exist yet; `last_good` is a folder for copies of good files, '' for none."""
        self.synced = asyncio.Event()
        self._resumes = False  # an earlier agent's objects are served: until there is a folder its copies are used
        self._resumed = False  # the objects are those of the copies
        self._folder = folder
        self._poll_s, self._rescan_s = poll_s, rescan_s
        place = os.path.abspath(folder).strip("/").replace("/", "-")[-200:]  # another folder has copies of its own
        self._copies = ManifestCopies(os.path.join(last_good, place)) if last_good else None
        self._files = ManifestFiles(recall=self._copies.recall) if self._copies else ManifestFiles()
        self._seen: dict[str, Signature | None] = {}  # by path; None = could not be read
        self._pending: dict[str, None] = {}  # paths to read, in the order they were reported
        self._missing: dict[str, float] = {}  # missing paths -> when they count as deleted
        self._problem: Message | None = None  # of the folder itself
        self._message_log = MessageLog(log, "manifest refused")
        self._recovering = False
        self._wake = asyncio.Event()
        self._rescan = True
        self._looked = 0.0  # time of the last check of all files
        self._watch = FolderWatch(folder, use_inotify=use_inotify)

    @property
    def trusted(self) -> bool:
        """Whether the folder was readable with a manifest, and is not being read again after an absence."""
        return self._problem is None and not self._recovering

    @property
    def distrust(self) -> Message | None:
        """The problem of the folder, or that its files are read again after an absence."""
        if self._problem is None and self._recovering:
            return Message("the folder is back and its files are read", file=self._folder)
        return self._problem

    @property
    def listed(self) -> bool:
        """The same as `trusted`: copies replace the manifests of a missing folder, and may be older."""
        return self.trusted

    @property
    def remembered(self) -> bool:
        """Whether the objects are those of the copies."""
        return self._resumed

    @property
    def copies_folder(self) -> str:
        """The folder of copies of good manifests; '' without one."""
        return self._copies.folder if self._copies else ""

    def copies_failure(self) -> str:
        """Return which copies are not up to date, and why; '' if all are."""
        return self._copies.failure() if self._copies else ""

    def snapshot(self) -> ObjectSnapshot:
        """Return every effective object."""
        return self._files.snapshot()

    def problems(self) -> Sequence[Message]:
        """Return the problems of the folder and its files."""
        return ([self._problem] if self._problem else []) + self._files.problems()

    def resume(self) -> None:
        """Use the copies of an earlier agent's manifests until there is a folder: served frontends keep their names."""
        self._resumes = True

    async def run(self, on_change: OnChange) -> None:
        """List the folder, then follow it until cancelled."""
        self._watch.start(self._take_events)
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._copies:
                    tasks.create_task(self._copies.run())
                while True:
                    await self._work(on_change)
                    self.synced.set()
                    await self._wait()
        finally:
            self._watch.close()

    def _note_good(self, path: str, signature: Signature | None) -> None:
        if self._copies:
            self._copies.note(path, signature)

    async def _wait(self) -> None:
        """Wait for an event, the next check of all files, or a deletion that is due."""
        until = self._looked + (self._rescan_s if self._watch.is_following else self._poll_s)
        if self._missing:
            until = min(until, *self._missing.values())
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()
        if time.monotonic() >= self._looked + (self._rescan_s if self._watch.is_following else self._poll_s):
            self._rescan = True

    # --- a second list ---

    async def find_missed(self) -> Missed:
        """Read every file again; a change that the next check of all files finds is not missed. Raises TimedOut."""
        until = time.monotonic() + CATCH_UP_S + (self._rescan_s if self._watch.is_following else self._poll_s)
        while True:
            if why := self.distrust:
                raise TimedOut(f"nothing can be compared with the manifests: {why}")
            texts = await asyncio.to_thread(_texts, self._folder)
            if texts is None:
                raise TimedOut(f"nothing can be compared with the manifests: {self._folder} has none that can be read")
            paths = self._unread(texts)
            if not paths:
                return Missed()
            if time.monotonic() > until:
                changes = (each for path in paths for each in self._files.changes_to(path, texts.get(path)))
                return Missed(tuple(changes), tuple(map(os.path.basename, paths)))
            await asyncio.sleep(LOOK_S)

    def _unread(self, texts: dict[str, str | None]) -> list[str]:
        """Return the files whose text is not the one that was read last."""
        known = set(self._files.paths)
        changed = [
            path for path, text in texts.items() if text is not None and not self._files.is_read(path, hash(text))
        ]
        return changed + sorted(known - texts.keys())

    def list_again(self, places: Sequence[str]) -> None:
        """Read these files again."""
        for name in places:
            path = os.path.join(self._folder, name)
            if os.path.lexists(path):
                self._pending[path] = None
            else:
                self._miss(path)
        self._wake.set()

    # --- events ---

    def _take_events(self, events: Sequence[Event]) -> None:
        for event in events:
            # While the folder is gone or empty, any event leads to a check of all files.
            if self._problem or is_lost(event) or is_about_all_files(event):
                self._rescan = True
            elif is_manifest(event.name):
                path = os.path.join(self._folder, event.name)
                if is_complete(event, path):
                    self._pending[path] = None
        self._wake.set()

    # --- work ---

    async def _work(self, on_change: OnChange) -> None:
        """Do the work that is due: check all files if requested, read changed ones, delete those that stayed missing."""
        before = (self._problem, self._files.revision, self.trusted)
        first = not self.synced.is_set()
        if self._rescan:
            self._rescan = False
            await self._scan(None if first else on_change)
        changes: list[ObjectChange] = []
        if first and self._problem and self._resumes:
            changes += await self._read_copies(self._problem.problem)
        while self._pending:
            changes += await self._read_some()
            if not first and changes:
                self._publish(on_change, changes)
                changes = []
            await asyncio.sleep(0)
        changes += self._delete()
        if not (self._missing or self._problem):
            self._recovering = False
        refused = before != (self._problem, self._files.revision, self.trusted)
        if changes or first or refused:
            self._publish(on_change, changes)
        if refused:
            self._message_log.update(self.problems())

    def _publish(self, on_change: OnChange, changes: list[ObjectChange]) -> None:
        self._files.generation += bool(changes)
        on_change(changes)

    async def _read_copies(self, problem: str) -> list[ObjectChange]:
        """Use the copies of an earlier agent's manifests: the frontends that it served have names again."""
        changes: list[ObjectChange] = []
        for name in self._copies.names() if self._copies else ():
            path = os.path.join(self._folder, name)
            changes += self._files.resume(path)
            self._seen[path] = None  # read when it is back, deleted if the folder is back without it
            await asyncio.sleep(0)
        self._resumed = True
        self._keep_everything(problem)
        return changes

    async def _read_some(self) -> list[ObjectChange]:
        """Read pending files for a moment; a large one in a thread, so that other tasks run meanwhile."""
        changes: list[ObjectChange] = []
        until = time.monotonic() + BATCH_S
        while self._pending and time.monotonic() < until:
            path = next(iter(self._pending))
            del self._pending[path]
            signature = signature_of(path)
            if signature is None and _is_gone(path):
                self._miss(path)
                continue
            self._missing.pop(path, None)
            self._seen[path] = signature
            if signature is not None and signature[3] > LARGE:
                changes += await self._read_large(path)
            else:
                changes += self._files.read(path)
            if self._files.is_good(path):
                self._note_good(path, signature)
        if self._recovering:
            self._missing = dict.fromkeys(self._missing, time.monotonic() + DELETE_DELAY_AFTER_LOSS_S)
        return changes

    async def _read_large(self, path: str) -> list[ObjectChange]:
        changes: list[ObjectChange] = []
        for part in self._files.accept_parts(await asyncio.to_thread(self._files.prepare, path)):
            changes += part
            await asyncio.sleep(0)
        return changes

    def _miss(self, path: str) -> None:
        if path in self._seen or path in self._files.paths:
            pause = DELETE_DELAY_AFTER_LOSS_S if self._recovering else DELETE_DELAY_S
            self._missing.setdefault(path, time.monotonic() + pause)

    def _delete(self) -> list[ObjectChange]:
        now = time.monotonic()
        due = [path for path, deadline in self._missing.items() if deadline <= now]
        if due and self._list() is None:
            return []
        changes: list[ObjectChange] = []
        for path in due:
            del self._missing[path]
            if os.path.lexists(path):
                self._pending[path] = None
                self._wake.set()
                continue
            self._seen.pop(path, None)
            changes += self._files.remove(path)
            self._note_good(path, None)
        return changes

    def _list(self) -> list[str] | None:
        """Return the paths of the manifests; None if there are none or the folder cannot be read: then nothing is deleted."""
        try:
            names = manifest_names(self._folder)
        except OSError as error:
            self._keep_everything(f"the folder cannot be read: {error.strerror}")
            return None
        if not names:
            self._keep_everything("the folder holds no manifest")
            return None
        self._problem, self._resumed = None, False
        return [os.path.join(self._folder, name) for name in names]

    def _keep_everything(self, problem: str) -> None:
        """Keep all objects: a failed or empty list does not mean that the objects were deleted."""
        self._missing.clear()
        self._recovering = True
        objects, generation = self._files.count, 0 if self._resumed else self._files.generation
        kept = f"kept {objects} objects of generation {generation}"
        self._problem = Message(problem, kept, file=self._folder, warning=not objects)

    async def _scan(self, on_change: OnChange | None) -> None:
        """Check every file, and record those that are new, changed or missing; files of events that arrive meanwhile come first."""
        self._looked = time.monotonic()
        self._watch.follow()
        paths = self._list()
        if paths is None:
            return
        present = set(paths)
        away = [path for path in self._seen if path not in present]
        for number, path in enumerate(paths):
            self._missing.pop(path, None)
            signature = signature_of(path)
            if self._is_being_written(signature):
                continue
            if path not in self._seen or signature is None or signature != self._seen[path]:
                self._pending[path] = None
            if number % MAX_LOOKS_AT_ONCE == 0 and on_change is not None:
                await asyncio.sleep(0)
                if self._pending and (changes := await self._read_some()):
                    self._publish(on_change, changes)
        for path in away:
            self._miss(path)

    def _is_being_written(self, signature: Signature | None) -> bool:
        """Without inotify the end of a write is not reported: leave a file that has just changed to the next check."""
        if self._watch.is_available or signature is None or not self.synced.is_set():
            return False
        return 0 <= time.time_ns() - signature[2] < YOUNG_NS


def _texts(folder: str) -> dict[str, str | None] | None:
    """Return the text of each manifest, None for one that cannot be read; None without any, or without the folder."""
    try:
        names = manifest_names(folder)
    except OSError:
        return None
    texts: dict[str, str | None] = {}
    for name in names:
        path = os.path.join(folder, name)
        try:
            texts[path] = text = read_text(path)
            hash(text)  # is kept in it: a large one takes its time here, in a thread
        except UnreadableManifest:
            texts[path] = None
    return texts or None


def _is_gone(path: str) -> bool:
    return not os.path.lexists(path)
