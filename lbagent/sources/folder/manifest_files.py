"""The objects of a set of manifest files: last good objects a file, the first of duplicates, what is wrong. No waiting here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.message import Message
from lbagent.objects.records import FIELD_OF_KIND, KubeObject, LastGoodObject, ObjectChange, ObjectSnapshot
from lbagent.sources.manifest import documents
from lbagent.sources.manifest.documents import KeptGenerations, ParsedManifest
from lbagent.textfile.read_text import SUFFIXES, UnreadableManifest, read_text

ObjectKey = tuple[str, str]  # kind, key
SOURCE = "folder"  # the name of the source that every object of a manifest file carries
MAX_CHANGES_AT_ONCE = 1000  # objects exchanged in one go


class _File(Struct, gc=False):
    """A file as it was read last. `failure` is why it does not count now; `objects` are then the last good ones."""

    parsed: ParsedManifest
    generation: int
    failure: Message | None = None


class FileReading(Struct, frozen=True, gc=False):
    """A file that was read and not yet taken over: what it holds, or why it does not count."""

    path: str
    parsed: ParsedManifest | None = None
    failure: Message | None = None
    recalled: ParsedManifest = ParsedManifest()  # of a file that fails when it is read for the first time


class ManifestFiles:
    """Objects of files by name. Every change gives the changes of objects that follow from it."""

    def __init__(
        self, *, say_generation: bool = True, recall: Callable[[str], str | None] = lambda _path: None
    ) -> None:
        """`recall` gives the last good text of a file not read before; `say_generation` is for messages of a running agent."""
        self._recall = recall
        self.generation = 0  # how many batches of changed objects the source has published; the source counts them
        self.revision = 0  # counts changes of `problems`
        self._say_generation = say_generation
        self._files: dict[str, _File] = {}
        self._holders: dict[ObjectKey, list[KubeObject]] = {}  # all objects of a kind and key, the one that holds first
        self._duplicates: set[ObjectKey] = set()

    def __len__(self) -> int:
        """Return the number of files known."""
        return len(self._files)

    @property
    def count(self) -> int:
        """How many objects hold."""
        return len(self._holders)

    @property
    def paths(self) -> Iterable[str]:
        """The files known."""
        return self._files.keys()

    def read(self, path: str, *, any_file: bool = False) -> list[ObjectChange]:
        """Read a file again; one that does not parse keeps its last good objects."""
        return self.accept(self.prepare(path, any_file=any_file))

    def prepare(self, path: str, *, any_file: bool = False) -> FileReading:
        """Read and parse a file, changing nothing: may run in a thread while the event loop leaves this file alone."""
        try:
            return self.parse(path, read_text(path, any_file=any_file))
        except UnreadableManifest as error:
            return self._failed(path, error.message)

    def parse(self, path: str, text: str) -> FileReading:
        """Parse the text of a file, changing nothing. What is faulty keeps its last good value."""
        before = _LastGoodFile(self._files.get(path), lambda: self._recalled(path))
        try:
            parsed = documents.parse(text, path, SOURCE, before.find)
        except UnreadableManifest as error:
            return self._failed(path, error.message)
        if parsed.is_empty and before.parsed.objects:
            # A file is truncated before it is written, and comments may be all that a template gave: neither says that
            # the objects are to go. Deleting the file does, and so does a List without items.
            what = "the file holds only comments" if text.strip() else "the file is empty"
            return self._failed(path, Message(what, file=path))
        return FileReading(path, self._keep_missing(parsed, before) if parsed.unidentified else parsed)

    def _keep_missing(self, parsed: ParsedManifest, before: _LastGoodFile) -> ParsedManifest:
        """Keep what is not there any more: a document that does not say which object it is may be one of these."""
        present = {(kind, obj.key) for kind, obj in parsed.objects}
        gone = [(kind, obj) for kind, obj in before.parsed.objects if (kind, obj.key) not in present]
        kept = dict(parsed.kept)
        unidentified = parsed.unidentified
        if gone:
            lasts = [last for kind, obj in gone if (last := before.find(kind, obj.key))]
            kept |= {
                (kind, obj.key): KeptGenerations(last.generation, last.parts)
                for (kind, obj), last in zip(gone, lasts, strict=True)
            }
            what = f"kept {len(gone)} objects of generation {max(last.generation for last in lasts)}"
            unidentified = tuple(replace(message, kept=what) for message in unidentified)
        return replace(
            parsed,
            objects=(*parsed.objects, *gone),
            messages=(*parsed.messages, *unidentified),
            kept=kept,
            unidentified=(),
        )

    def _failed(self, path: str, message: Message) -> FileReading:
        return FileReading(path, None, message, ParsedManifest() if path in self._files else self._recalled(path))

    def accept(self, reading: FileReading) -> list[ObjectChange]:
        """Take over what was read."""
        return [change for part in self.accept_parts(reading) for change in part]

    def accept_parts(self, reading: FileReading) -> Iterator[list[ObjectChange]]:
        """Take over what was read, some objects at a time; to be iterated to its end."""
        path, parsed = reading.path, reading.parsed
        if parsed is None:
            assert reading.failure is not None
            yield self._fail(path, reading.failure, reading.recalled)
            return
        old = self._files.get(path)
        if parsed.messages or (old is not None and (old.parsed.messages or old.failure)):
            self.revision += 1
        known = self._files[path] = _File(parsed, self.generation + 1)  # of the changes that are published next
        changed = False
        for changes in self._exchange(old.parsed if old else ParsedManifest(), parsed):
            changed |= bool(changes)
            yield changes
        if not changed:
            known.generation = old.generation if old else self.generation

    def _fail(self, path: str, message: Message, recalled: ParsedManifest) -> list[ObjectChange]:
        """Keep what a file held when it was good, and say so."""
        changes: list[ObjectChange] = []
        known = self._files.get(path)
        if known is None:
            known = self._files[path] = _File(recalled, 0)
            changes = [change for part in self._exchange(ParsedManifest(), recalled) for change in part]
        kept = f"kept {len(known.parsed.objects)} objects"
        if self._say_generation:
            kept += f" of generation {known.generation}"
        message = replace(message, kept=kept)
        if message != known.failure:
            known.failure = message
            self.revision += 1
        return changes

    def resume(self, path: str) -> list[ObjectChange]:
        """Take over what a file held before the agent was restarted; it counts as not read yet."""
        recalled = self._recalled(path)
        self._files[path] = _File(recalled, 0)
        return [change for part in self._exchange(ParsedManifest(), recalled) for change in part]

    def _recalled(self, path: str) -> ParsedManifest:
        """Return what the file held before the agent was restarted."""
        text = self._recall(path)
        if text is None:
            return ParsedManifest()
        try:
            return ParsedManifest(documents.parse(text, path, SOURCE).objects)
        except UnreadableManifest:
            return ParsedManifest()

    def is_good(self, path: str) -> bool:
        """Return whether the file parsed when it was read last, and needed nothing from before."""
        known = self._files.get(path)
        return known is not None and known.failure is None and not known.parsed.kept

    def remove(self, path: str) -> list[ObjectChange]:
        """Take a file and its objects away."""
        old = self._files.pop(path, None)
        if old is None:
            return []
        self.revision += 1
        return [change for part in self._exchange(old.parsed, ParsedManifest()) for change in part]

    def _exchange(self, old: ParsedManifest, new: ParsedManifest) -> Iterator[list[ObjectChange]]:
        """Replace the objects of a file. An object that is equal stays the same object and is no change."""
        pairs: dict[ObjectKey, tuple[list[KubeObject], list[KubeObject]]] = {}
        for side, parsed in enumerate((old, new)):
            for kind, obj in parsed.objects:
                pairs.setdefault((kind, obj.key), ([], []))[side].append(obj)
        changes: list[ObjectChange] = []
        for number, (key, (gone, come)) in enumerate(pairs.items(), 1):
            first = self._first(key)
            holders = self._holders.setdefault(key, [])
            if gone:
                holders[:] = [each for each in holders if all(each is not obj for obj in gone)]
            holders += come
            if len(holders) > 1:
                holders.sort(key=lambda each: each.origin)
            if change := self._refresh_holder(key, first):
                changes.append(change)
            if number % MAX_CHANGES_AT_ONCE == 0:
                yield changes
                changes = []
        yield changes

    def _first(self, key: ObjectKey) -> KubeObject | None:
        holders = self._holders.get(key)
        return holders[0] if holders else None

    def _refresh_holder(self, key: ObjectKey, old: KubeObject | None) -> ObjectChange | None:
        holders = self._holders[key]
        if len(holders) > 1:
            self._duplicates.add(key)
            self.revision += 1
        elif key in self._duplicates:
            self._duplicates.discard(key)
            self.revision += 1
        if not holders:
            del self._holders[key]
            return ObjectChange(*key, old, None) if old is not None else None
        return ObjectChange(*key, old, holders[0]) if old != holders[0] else None

    def snapshot(self) -> ObjectSnapshot:
        """Return every object that holds."""
        kinds: dict[str, dict[str, KubeObject]] = {field: {} for field in FIELD_OF_KIND.values()}
        for (kind, key), holders in self._holders.items():
            kinds[FIELD_OF_KIND[kind]][key] = holders[0]
        return ObjectSnapshot(**kinds)  # type: ignore[arg-type]

    def problems(self) -> list[Message]:
        """Return what is wrong, by file and line."""
        found = [message for file in self._files.values() for message in file.parsed.messages]
        found += [file.failure for file in self._files.values() if file.failure]
        for kind, key in self._duplicates:
            first, *others = self._holders[kind, key]
            where = f"{os.path.basename(first.origin.file)}:{first.origin.line}"
            for other in others:
                found.append(
                    Message(
                        f"the object is given twice, first in {where}",
                        "the first one is used",
                        "metadata.name",
                        kind,
                        key,
                        other.origin.file,
                        other.origin.line,
                    )
                )
        return sorted(found, key=lambda message: (message.file, message.line))


class _LastGoodFile:
    """What a file held when it was good; looked up only when something is wrong now."""

    def __init__(self, file: _File | None, recall: Callable[[], ParsedManifest]) -> None:
        self._file = file
        self._recall = recall
        self._objects: dict[ObjectKey, KubeObject] | None = None

    @cached_property
    def parsed(self) -> ParsedManifest:
        return self._file.parsed if self._file else self._recall()

    def find(self, kind: str, key: str) -> LastGoodObject | None:
        """Return the last good form of an object, if there was one."""
        if self._objects is None:
            self._objects = {(kind, obj.key): obj for kind, obj in reversed(self.parsed.objects)}
        obj = self._objects.get((kind, key))
        if obj is None:
            return None
        kept = self.parsed.kept.get((kind, key), KeptGenerations())
        generation = self._file.generation if self._file else 0
        return LastGoodObject(obj, generation if kept.generation is None else kept.generation, kept.parts)


def manifest_names(folder: str) -> list[str]:
    """Return the names of the manifests directly in a folder, sorted. Raises OSError."""
    return sorted(name for name in os.listdir(folder) if is_manifest(name))


def is_manifest(name: str) -> bool:
    """Return whether a name is one of a manifest: *.yaml, *.yml, *.json, printable, not starting with a dot."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and name.isprintable()


def load(path: str) -> ManifestFiles:
    """Read a folder or a file once, as `plan` does. Raises OSError when it is not there or cannot be listed."""
    files = ManifestFiles(say_generation=False)
    if os.path.isdir(path):
        for name in manifest_names(path):
            files.read(os.path.join(path, name))
        return files
    os.stat(path)
    files.read(path, any_file=True)
    return files
