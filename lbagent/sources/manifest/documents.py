"""Manifest texts to objects: YAML or JSON, several documents, List objects. Says FILE:LINE and field of what is wrong."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lbagent.objects.decode.decode_object import DecodedObject, decode_object, is_used
from lbagent.objects.decode.report import OURS
from lbagent.objects.decode.wire import FieldPath, path_text
from lbagent.objects.records import KubeObject, LastGoodObject, Message, Origin
from lbagent.sources.manifest import yamldoc
from lbagent.sources.manifest.yamldoc import Lines, YamlError

SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 64 << 20  # of one file: some 50,000 Services of 10 endpoints; parsed it takes some ten times as much memory
MAX_OBJECTS = 1_000_000  # of one file
BY_HAND = 1 << 18  # characters: JSON up to here may be written by a person, who may write a key twice


FindLastGood = Callable[[str, str], LastGoodObject | None]  # kind, key -> the last good form of an object


class KeptGenerations(Struct, frozen=True, gc=False):
    """Generations of what an object has from before: of all of it (None: of its file), and of fields that are older."""

    generation: int | None = None
    parts: Mapping[str, int] = MappingProxyType({})


class ParsedManifest(Struct, frozen=True, gc=False):
    """What one text holds, and what stays of what it held before. `is_empty`: there was no document at all.

    `unknown` are messages about documents of which nobody can say which object they are.
    """

    objects: tuple[tuple[str, KubeObject], ...] = ()  # (kind, object) in order
    messages: tuple[Message, ...] = ()
    kept: Mapping[tuple[str, str], KeptGenerations] = MappingProxyType({})  # by kind and key
    unknown: tuple[Message, ...] = ()
    is_empty: bool = False


class _ParsedObjects:
    """The objects of a text while it is read."""

    def __init__(self, find: FindLastGood) -> None:
        self.find = find
        self.found: list[tuple[str, KubeObject]] = []
        self.messages: list[Message] = []
        self.unknown: list[Message] = []
        self.kept: dict[tuple[str, str], KeptGenerations] = {}
        self.refused: dict[tuple[str, str], LastGoodObject] = {}

    def take(self, read: DecodedObject) -> None:
        key = (read.kind, read.key)
        if not read.key:
            self.unknown += read.messages
            return
        self.messages += read.messages
        if read.obj is not None:
            self.found.append((read.kind, read.obj))
            if read.kept:
                self.kept.setdefault(key, KeptGenerations(parts=dict(read.kept)))
        elif read.last is not None:
            self.refused.setdefault(key, read.last)

    def finish(self, *, is_empty: bool) -> ParsedManifest:
        """Add the last good form of refused objects that are not there a second time, in order."""
        if self.refused:
            present = {(kind, obj.key) for kind, obj in self.found}
            for (kind, key), last in self.refused.items():
                if (kind, key) not in present:
                    self.found.append((kind, last.obj))
                    self.kept[kind, key] = KeptGenerations(last.generation, last.parts)
        return ParsedManifest(tuple(self.found), tuple(self.messages), self.kept, tuple(self.unknown), is_empty)


class UnreadableManifest(Exception):
    """The text as a whole is no manifest; `message` says where and why, without what was kept."""

    def __init__(self, message: Message) -> None:
        """Keep the message."""
        super().__init__(str(message))
        self.message = message


def read_text(path: str, *, any_file: bool = False) -> str:
    """Return the text of a file. Raises Unparsable when it cannot be read, is too large or is not UTF-8.

    Only regular files are read, unless `any_file`: a pipe in a watched folder would stop the agent.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if any_file else os.O_NONBLOCK))
        try:
            if not (any_file or stat.S_ISREG(os.fstat(handle).st_mode)):
                raise UnreadableManifest(Message("not a regular file", file=path))
            if os.fstat(handle).st_size > MAX_BYTES:
                raise _too_large(path)
            with open(handle, "rb", closefd=False) as file:
                data = file.read(MAX_BYTES + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise UnreadableManifest(Message(f"cannot be read: {error.strerror}", file=path)) from None
    return decode(data, path)


def _too_large(path: str) -> UnreadableManifest:
    return UnreadableManifest(
        Message(f"larger than {MAX_BYTES >> 20} MiB: spread its objects over several files", file=path)
    )


def decode(data: bytes, path: str) -> str:
    """Return the text of UTF-8 bytes. Raises Unparsable."""
    if len(data) > MAX_BYTES:
        raise _too_large(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableManifest(Message(f"not UTF-8: {error.reason}", file=path, line=line)) from None


def parse(text: str, path: str, find: FindLastGood = lambda _kind, _key: None) -> ParsedManifest:
    """Read every object we use of a text. Raises Unparsable when it is not YAML or JSON, or holds something else than objects.

    What is faulty keeps the last good value that `find` gives.
    """
    try:
        return _parse(_documents(text, path), text, path, find)
    except (msgspec.DecodeError, RecursionError):  # JSON after all not, but maybe YAML
        return _parse(yamldoc.load(text), text, path, find)


def _parse(documents: Iterable[tuple[int, Any]], text: str, path: str, find: FindLastGood) -> ParsedManifest:
    objects = _ParsedObjects(find)
    finder = _LineFinder(text)
    order = 0
    is_empty = True
    strangers: list[Message] = []
    try:
        for number, (line, document) in enumerate(documents):
            is_empty = is_empty and document is None
            for at, raw in _flatten(document, (), path, line):
                order += 1
                if order > MAX_OBJECTS:
                    raise UnreadableManifest(Message(f"more than {MAX_OBJECTS} objects", file=path, line=line))
                if not isinstance(raw, dict):
                    where = finder.bound(number, at, line)(())
                    strangers.append(Message("the document is not an object", "", path_text(at), "", path, where))
                    continue
                if headless := _without_kind(raw):
                    what, field = headless
                    where = finder.bound(number, at, line)(())
                    objects.unknown.append(Message(what, "the document is left out", field, "", path, where))
                    continue
                if is_used(raw["apiVersion"], raw["kind"]):
                    origin = Origin(path, order, line)
                    objects.take(decode_object(raw, origin, finder.bound(number, at, line), find))
                elif raw["apiVersion"].startswith(OURS):
                    problem = f"{raw['kind']} of {raw['apiVersion']} is not acted on by this version"
                    objects.messages.append(Message(problem, "it is passed over", "kind", "", path, line, warning=True))
    except YamlError as error:
        raise UnreadableManifest(Message(error.problem, file=path, line=error.line)) from None
    if strangers and not objects.found:  # what is no manifest at all
        raise UnreadableManifest(strangers[0])
    objects.unknown += [replace(each, kept="the document is left out") for each in strangers]
    return objects.finish(is_empty=is_empty)


def _documents(text: str, path: str) -> Iterable[tuple[int, Any]]:
    """Return (line, document) of each; a JSON List with its items still to be decoded: a large one is 100 MiB of them."""
    if text.lstrip()[:1] != "{":
        return yamldoc.load(text)
    if len(text) <= BY_HAND:
        _refuse_twins(text, path)
    try:  # JSON is ten times as fast to read, and is what large folders hold
        found = msgspec.json.decode(text, type=_JsonList)
    except msgspec.ValidationError:
        return [(1, msgspec.json.decode(text))]
    return [(1, {"kind": found.kind, "apiVersion": found.apiVersion, "items": found.items})]


def _refuse_twins(text: str, path: str) -> None:
    """Raise Unparsable when a JSON object holds a key twice: which one is meant nobody can know."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1 and len(dict(pairs)) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            raise _Twice(max(counts, key=counts.__getitem__))

    try:
        json.loads(text, object_pairs_hook=unique)
    except _Twice as error:
        raise UnreadableManifest(
            Message(f"the key {error.args[0]!r} is there twice", file=path, line=_line_of_twin(text))
        ) from None
    except (ValueError, RecursionError):
        return  # not JSON: said by whoever reads it


class _Twice(Exception):
    """A key of an object is there twice."""


def _line_of_twin(text: str) -> int:
    """Return the line of the first thing wrong by YAML's rules, which hold for most JSON; 0 when nothing is."""
    try:
        for _ in yamldoc.load(text):
            pass
    except YamlError as error:
        return error.line
    return 0


class _JsonList(Struct, gc=False):
    kind: str
    items: list[msgspec.Raw]
    apiVersion: Any = None  # noqa: N815


def _flatten(document: Any, at: FieldPath, path: str, line: int) -> Iterator[tuple[FieldPath, Any]]:
    """Iterate over (place in the document, object, or what is there instead); a List gives its items."""
    if document is None:
        return
    if not isinstance(document, dict):
        yield at, document
        return
    kind = document.get("kind")
    items = document.get("items")
    if kind == "List" and not isinstance(items, list | None):
        raise UnreadableManifest(Message("expected a list", field="items", file=path, line=line))
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield at, document
        return
    inner = {} if kind == "List" else {"kind": kind[:-4], "apiVersion": document.get("apiVersion")}
    for index, raw in enumerate(items):
        item = msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else raw
        if isinstance(item, dict):
            for key, value in inner.items():
                item.setdefault(key, value)
        if len(at) >= 2 * _MAX_LISTS:
            raise UnreadableManifest(
                Message(f"more than {_MAX_LISTS} Lists in one another", field="items", file=path, line=line)
            )
        yield from _flatten(item, (*at, "items", index), path, line)


_MAX_LISTS = 3  # a List in a List in a List


def _without_kind(raw: dict[str, Any]) -> tuple[str, str] | None:
    """Return (what is wrong, field) of a document that does not say what it is."""
    for field in ("apiVersion", "kind"):
        value = raw.get(field)
        if not isinstance(value, str) or not value:
            return "it is missing" if value is None else "expected a text", field
    return None


class _LineFinder:
    """Finds lines of fields by reading the text a second time, in step, and only when something is wrong."""

    def __init__(self, text: str) -> None:
        self._documents = yamldoc.load_lines(text)  # reads nothing yet
        self._number = -1
        self._lines: Lines | None = None  # of this document

    def _lines_of(self, document: int) -> Lines | None:
        try:
            while self._number < document:
                self._lines = next(self._documents, None)
                self._number += 1
        except YamlError:  # JSON that is not YAML: tabs
            self._lines, self._number = None, MAX_BYTES
        return self._lines if self._number == document else None

    def bound(self, document: int, at: FieldPath, first: int) -> Callable[[FieldPath], int]:
        """Return the finder of one object's fields."""

        def find(path: FieldPath) -> int:
            lines = self._lines_of(document)
            return first if lines is None else yamldoc.find_line(lines, (*at, *path))

        return find
