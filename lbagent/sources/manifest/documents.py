"""Manifest texts to objects: YAML or JSON, several documents, List objects. Messages have FILE:LINE and field.

objects/decode decodes a single object; this module splits texts into objects, and finds their lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lbagent.model.message import Message
from lbagent.objects.decode.decode_object import DecodedObject, decode_object
from lbagent.objects.records import KubeObject, LastGoodObject, Origin
from lbagent.textfile import yamldoc
from lbagent.textfile.field_path import FieldPath, path_text
from lbagent.textfile.read_text import MAX_BYTES, UnreadableManifest
from lbagent.textfile.yamldoc import Lines, YamlError
from lbagent.value_errors import wrong_type

MAX_OBJECTS = 1_000_000  # of one file
BY_HAND = 1 << 18  # characters: shorter JSON may be written by a person, with a key given twice


FindLastGood = Callable[[str, str], LastGoodObject | None]  # kind, key -> the last good form of an object


class KeptGenerations(Struct, frozen=True, gc=False):
    """Generations of an object's last good parts: of the object (None: of its file), and of older fields."""

    generation: int | None = None
    parts: Mapping[str, int] = MappingProxyType({})


class ParsedManifest(Struct, frozen=True, gc=False):
    """The contents of one text, with kept parts of the earlier contents. `is_empty`: there was no document at all.

    `unidentified` are messages about documents without a usable name.
    """

    objects: tuple[tuple[str, KubeObject], ...] = ()  # (kind, object) in order
    messages: tuple[Message, ...] = ()
    kept: Mapping[tuple[str, str], KeptGenerations] = MappingProxyType({})  # by kind and key
    unidentified: tuple[Message, ...] = ()
    is_empty: bool = False


class _ParsedObjects:
    """The objects of a text while it is read."""

    def __init__(self, find: FindLastGood) -> None:
        self.find = find
        self.found: list[tuple[str, KubeObject]] = []
        self.messages: list[Message] = []
        self.unidentified: list[Message] = []
        self.kept: dict[tuple[str, str], KeptGenerations] = {}
        self.refused: dict[tuple[str, str], LastGoodObject] = {}

    def add(self, decoded: DecodedObject) -> None:
        key = (decoded.kind, decoded.key)
        if decoded.is_unidentified:
            self.unidentified += decoded.messages
            return
        self.messages += decoded.messages
        if decoded.obj is not None:
            self.found.append((decoded.kind, decoded.obj))
            if decoded.kept:
                self.kept.setdefault(key, KeptGenerations(parts=dict(decoded.kept)))
        elif decoded.last is not None:
            self.refused.setdefault(key, decoded.last)

    def finish(self, *, is_empty: bool) -> ParsedManifest:
        """Add the last good form of rejected objects that do not occur a second time, in order."""
        if self.refused:
            present = {(kind, obj.key) for kind, obj in self.found}
            for (kind, key), last in self.refused.items():
                if (kind, key) not in present:
                    self.found.append((kind, last.obj))
                    self.kept[kind, key] = KeptGenerations(last.generation, last.parts)
        return ParsedManifest(tuple(self.found), tuple(self.messages), self.kept, tuple(self.unidentified), is_empty)


def parse(text: str, path: str, source: str, find: FindLastGood = lambda _kind, _key: None) -> ParsedManifest:
    """Read every object of a text that is used.

    `source` is the name of the source that reads it. Faulty parts keep the last good value from `find`. Raises UnreadableManifest
    if the text is not YAML or JSON, or has something else than objects.
    """
    try:
        return _parse(_documents(text, path), text, path, source, find)
    except (msgspec.DecodeError, RecursionError):  # not JSON, but it may be YAML
        return _parse(yamldoc.load(text), text, path, source, find)


def _parse(
    documents: Iterable[tuple[int, Any]], text: str, path: str, source: str, find: FindLastGood
) -> ParsedManifest:
    objects = _ParsedObjects(find)
    finder = _LineFinder(text)
    order = 0
    is_empty = True
    no_objects: list[Message] = []
    try:
        for number, (line, document) in enumerate(documents):
            is_empty = is_empty and document is None
            for at, raw in _flatten(document, (), path, line):
                order += 1
                if order > MAX_OBJECTS:
                    raise UnreadableManifest(Message(f"more than {MAX_OBJECTS} objects", file=path, line=line))
                if not isinstance(raw, dict):
                    where = finder.bound(number, at, line)(())
                    no_objects.append(
                        Message("the document is not an object", "", path_text(at), file=path, line=where)
                    )
                    continue
                origin = Origin(path, order, line, source)
                objects.add(decode_object(raw, origin, finder.bound(number, at, line), find))
    except YamlError as error:
        raise UnreadableManifest(Message(error.problem, file=path, line=error.line)) from None
    if no_objects and not objects.found:  # not a manifest
        raise UnreadableManifest(no_objects[0])
    objects.unidentified += [replace(each, kept="the document is left out") for each in no_objects]
    return objects.finish(is_empty=is_empty)


def _documents(text: str, path: str) -> Iterable[tuple[int, Any]]:
    """Return (line, document) of each; a JSON List with its items still to be decoded: a large one is 100 MiB of them."""
    if text.lstrip()[:1] != "{":
        return yamldoc.load(text)
    if len(text) <= BY_HAND:
        _refuse_twins(text, path)
    try:  # JSON is ten times as fast to read, and large folders use it
        found = msgspec.json.decode(text, type=_JsonList)
    except msgspec.ValidationError:
        return [(1, msgspec.json.decode(text))]
    return [(1, {"kind": found.kind, "apiVersion": found.apiVersion, "items": found.items})]


def _refuse_twins(text: str, path: str) -> None:
    """Raise UnreadableManifest if a JSON object has a key twice: it is ambiguous."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1 and len(dict(pairs)) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            raise _Twice(max(counts, key=counts.__getitem__))

    try:
        json.loads(text, object_pairs_hook=unique)
    except _Twice as error:
        raise UnreadableManifest(
            Message(f"the key {error.args[0]!r} is given twice", file=path, line=_line_of_twin(text))
        ) from None
    except (ValueError, RecursionError):
        return  # not JSON: the decoder reports it


class _Twice(Exception):
    """A key of an object is given twice."""


def _line_of_twin(text: str) -> int:
    """Return the line of the first fault by YAML's rules, which apply to most JSON; 0 if there is none."""
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
    """Iterate over (place in the document, object or other value); a List gives its items."""
    if document is None:
        return
    if not isinstance(document, dict):
        yield at, document
        return
    kind = document.get("kind")
    items = document.get("items")
    if kind == "List" and not isinstance(items, list | None):
        raise UnreadableManifest(Message(wrong_type(items, "array"), field="items", file=path, line=line))
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


class _LineFinder:
    """Finds lines of fields by reading the text a second time, in step, and only if there is a fault."""

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
