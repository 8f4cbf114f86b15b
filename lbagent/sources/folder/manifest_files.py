"""The objects of a set of manifest files: last good objects per file, the first of duplicates, problems. Nothing here waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.message import Message
from lbagent.objects.records import FIELD_OF_KIND, FOLDER, KubeObject, LastGoodObject, ObjectChange, ObjectSnapshot
from lbagent.sources.manifest import documents
from lbagent.sources.manifest.documents import KeptGenerations, ParsedManifest
from lbagent.textfile.read_text import SUFFIXES, UnreadableManifest, read_text

ObjectKey = tuple[str, str]  # kind, key
MAX_CHANGES_AT_ONCE = 1000  # objects replaced per step


class _File(Struct, gc=False):
    """A file as last read. `failure` is the reason why it cannot be used; `objects` are then the last good ones."""

    parsed: ParsedManifest
    generation: int
    failure: Message | None = None
    digest: int = 0  # of the text that was read last


class FileReading(Struct, frozen=True, gc=False):
    """A file that was read and is not yet in use: its objects, or why it cannot be used."""

    path: str
    parsed: ParsedManifest | None = None
    failure: Message | None = None
    recalled: ParsedManifest = ParsedManifest()  # of a file that fails when it is read for the first time
    digest: int = 0


class ManifestFiles:
    """Objects of files by name. Every change of a file returns the resulting changes of objects."""

    def __init__(
        self, *, say_generation: bool = True, recall: Callable[[str], str | None] = lambda _path: None
    ) -> None:
        """`recall` returns the last good text of a file not read before; `say_generation`: messages have generations."""
        self._recall = recall
        self.generation = (
            0  # number of batches of changed objects that the source has published; the source counts them
        )
        self.revision = 0  # counts changes of `problems`
        self._say_generation = say_generation
        self._files: dict[str, _File] = {}
        self._holders: dict[ObjectKey, list[KubeObject]] = {}  # all objects of a kind and key, the effective one first
        self._duplicates: set[ObjectKey] = set()

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._files)

    @property
    def count(self) -> int:
        """The number of effective objects."""
        return len(self._holders)

    @property
    def paths(self) -> Iterable[str]:
        """The names of the files."""
        return self._files.keys()

    def read(self, path: str, *, any_file: bool = False) -> list[ObjectChange]:
        """Read a file again; one that does not parse keeps its last good objects."""
        return self.accept(self.prepare(path, any_file=any_file))

    def prepare(self, path: str, *, any_file: bool = False) -> FileReading:
        """Read and parse a file without a change: may run in a thread while the event loop does not use this file."""
        try:
            return self.parse(path, read_text(path, any_file=any_file))
        except UnreadableManifest as error:
            return self._failed(path, error.message)

    def parse(self, path: str, text: str) -> FileReading:
        """Parse the text of a file without a change. Faulty parts keep their last good value."""
        before = _LastGoodFile(self._files.get(path), lambda: self._recalled(path))
        digest = hash(text)
        try:
            parsed = documents.parse(text, path, FOLDER, before.find)
        except UnreadableManifest as error:
            return self._failed(path, error.message, digest)
        if parsed.is_empty and before.parsed.objects:
            # A file is truncated before it is written, and a template may result in comments only: neither means that the objects
            # are deleted. Deleting the file does, and so does a List without items.
            what = "the file holds only comments" if text.strip() else "the file is empty"
            return self._failed(path, Message(what, file=path), digest)
        return FileReading(path, self._keep_missing(parsed, before) if parsed.unidentified else parsed, digest=digest)

    def _keep_missing(self, parsed: ParsedManifest, before: _LastGoodFile) -> ParsedManifest:
        """Keep objects that are missing now: a document without a usable name may be one of these."""
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

    def _failed(self, path: str, message: Message, digest: int = 0) -> FileReading:
        recalled = ParsedManifest() if path in self._files else self._recalled(path)
        return FileReading(path, None, message, recalled, digest)

    def is_read(self, path: str, digest: int) -> bool:
        """Return whether the text with this hash is that of the file when it was read last."""
        known = self._files.get(path)
        return known is not None and known.digest == digest

    def changes_to(self, path: str, text: str | None) -> list[ObjectChange]:
        """Return the changes that reading a file with this text would make; None: without the file."""
        known = self._files.get(path)
        old = known.parsed if known else ParsedManifest()
        new = ParsedManifest() if text is None else self.parse(path, text).parsed
        if new is None:
            return []  # its last good objects stay
        wanted = {(kind, obj.key): obj for kind, obj in reversed(new.objects)}
        keys = dict.fromkeys([*((kind, obj.key) for kind, obj in old.objects), *wanted])
        found = []
        for key in keys:
            first = self._first(key)
            if first is None or first.origin.file == path:
                found.append(ObjectChange(*key, first, wanted.get(key)))
        return [change for change in found if change.old != change.new]

    def accept(self, reading: FileReading) -> list[ObjectChange]:
        """Use the objects that were read."""
        return [change for part in self.accept_parts(reading) for change in part]

    def accept_parts(self, reading: FileReading) -> Iterator[list[ObjectChange]]:
        """Use the objects that were read, some objects at a time; to be iterated to its end."""
        path, parsed = reading.path, reading.parsed
        if parsed is None:
            assert reading.failure is not None
            changes = self._fail(path, reading.failure, reading.recalled)
            self._files[path].digest = reading.digest
            yield changes
            return
        old = self._files.get(path)
        if parsed.messages or (old is not None and (old.parsed.messages or old.failure)):
            self.revision += 1
        known = self._files[path] = _File(
            parsed, self.generation + 1, digest=reading.digest
        )  # of the changes that are published next
        changed = False
        for changes in self._exchange(old.parsed if old else ParsedManifest(), parsed):
            changed |= bool(changes)
            yield changes
        if not changed:
            known.generation = old.generation if old else self.generation

    def _fail(self, path: str, message: Message, recalled: ParsedManifest) -> list[ObjectChange]:
        """Keep the last good objects of a file, and report it."""
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
        """Use the objects that a file had before the agent was restarted; it counts as not read yet."""
        recalled = self._recalled(path)
        self._files[path] = _File(recalled, 0)
        return [change for part in self._exchange(ParsedManifest(), recalled) for change in part]

    def _recalled(self, path: str) -> ParsedManifest:
        """Return the objects that the file had before the agent was restarted."""
        text = self._recall(path)
        if text is None:
            return ParsedManifest()
        try:
            return ParsedManifest(documents.parse(text, path, FOLDER).objects)
        except UnreadableManifest:
            return ParsedManifest()

    def is_good(self, path: str) -> bool:
        """Return whether the file parsed when it was last read, and kept no last good value."""
        known = self._files.get(path)
        return known is not None and known.failure is None and not known.parsed.kept

    def remove(self, path: str) -> list[ObjectChange]:
        """Remove a file and its objects."""
        old = self._files.pop(path, None)
        if old is None:
            return []
        self.revision += 1
        return [change for part in self._exchange(old.parsed, ParsedManifest()) for change in part]

    def _exchange(self, old: ParsedManifest, new: ParsedManifest) -> Iterator[list[ObjectChange]]:
        """Replace the objects of a file. An equal object stays the same Python object and is no change."""
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
        """Return every effective object."""
        kinds: dict[str, dict[str, KubeObject]] = {field: {} for field in FIELD_OF_KIND.values()}
        for (kind, key), holders in self._holders.items():
            kinds[FIELD_OF_KIND[kind]][key] = holders[0]
        return ObjectSnapshot(**kinds)  # type: ignore[arg-type]

    def problems(self) -> list[Message]:
        """Return the problems, by file and line."""
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
    """The last good objects of a file; looked up only if the file has a fault now."""

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
    """Return whether a name is that of a manifest: *.yaml, *.yml, *.json, printable, not starting with a dot."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and name.isprintable()


def load(path: str) -> ManifestFiles:
    """Read a folder or a file once, as `plan` does. Raises OSError if it does not exist or cannot be listed."""
    files = ManifestFiles(say_generation=False)
    if os.path.isdir(path):
        for name in manifest_names(path):
            files.read(os.path.join(path, name))
        return files
    os.stat(path)
    files.read(path, any_file=True)
    return files
