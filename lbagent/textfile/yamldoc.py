"""YAML text to plain values, with Kubernetes' rules, within bounds, and with the lines of fields.

PyYAML's own loaders make dates of timestamps and numbers of `10:20`, recurse in C without a limit, and copy aliases without a
limit; so only its event stream (libyaml) is used, which also costs only half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import yaml

from lbagent.textfile.field_path import FieldPath
from lbagent.value_errors import tab_problem

MAX_DEPTH = 64  # levels of nesting; Kubernetes objects have about 15
MAX_COPIES = 1_000_000  # values that the aliases of one file expand to; the rest is bounded by the file's size


class YamlError(Exception):
    """The text is not YAML, or beyond a bound; `line` is 1-based."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


class Lines(NamedTuple):
    """The line where a value begins (1-based), and the same for its parts."""

    line: int
    inside: dict[Any, Lines]


_PLAIN = re.compile(
    r"""^(?:(?P<null>~|null|Null|NULL|)
       |(?P<true>true|True|TRUE)|(?P<false>false|False|FALSE)
       |(?P<int>[-+]?[0-9]+)|(?P<oct>0o[0-7]+)|(?P<hex>0x[0-9a-fA-F]+)
       |(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?))$""",
    re.VERBOSE,
)
_STR = "tag:yaml.org,2002:str"
_MAYBE = frozenset("~nNtTfF0123456789+-.")  # first characters of a plain scalar that is not a text


def _scalar(text: str) -> Any:
    """Resolve a plain scalar by the core schema of YAML 1.2: no dates, no base 60, no yes and no."""
    if text and text[0] not in _MAYBE:
        return text
    match = _PLAIN.match(text)
    kind = match.lastgroup if match else None
    if kind is None or len(text) > 400:
        return text
    if kind == "int":
        return int(text)
    if kind in ("oct", "hex"):
        return int(text, 0)
    if kind == "float":
        return float(text)
    return {"null": None, "true": True, "false": False}[kind]


class _Reader:
    """Builds values from the events of one text. With `lines`, builds `Lines` instead of values."""

    def __init__(self, text: str, *, lines: bool) -> None:
        self._get: Callable[[], Any] = yaml.CSafeLoader(text).get_event
        self._anchors: dict[str, Any] = {}
        self._lines = lines
        self._left = MAX_COPIES

    def documents(self) -> Iterator[tuple[int, Any]]:
        get = self._get
        while True:
            event = get()
            kind = type(event)
            if kind is yaml.StreamEndEvent:
                return
            if kind is yaml.DocumentStartEvent:
                self._anchors = {}
                first = get()
                yield first.start_mark.line + 1, self._value(first, 0)

    def _value(self, event: Any, depth: int) -> Any:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            if self._lines:
                return self._keep(event, Lines(_line(event), {}))
            plain = event.implicit[0] and event.tag is None
            return self._keep(event, _scalar(event.value) if plain else self._tagged(event))
        if depth >= MAX_DEPTH:
            raise YamlError(_line(event), f"more than {MAX_DEPTH} levels")
        if kind is yaml.MappingStartEvent:
            return self._keep(event, self._mapping(event, depth + 1))
        if kind is yaml.SequenceStartEvent:
            return self._keep(event, self._sequence(event, depth + 1))
        return self._alias(event)

    def _keep(self, event: Any, value: Any) -> Any:
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _tagged(self, event: Any) -> Any:
        return (
            _scalar(event.value)
            if event.tag and event.tag != _STR and event.tag.startswith("tag:yaml.org")
            else event.value
        )

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise YamlError(_line(event), "unknown alias")  # without its name: it may be a password that begins with *
        if self._lines:
            return self._anchors[event.anchor]
        return self._copy(self._anchors[event.anchor], _line(event))

    def _copy(self, value: Any, line: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise YamlError(line, f"aliases stand for more than {MAX_COPIES} values")
        if isinstance(value, dict):
            return {key: self._copy(item, line) for key, item in value.items()}
        return [self._copy(item, line) for item in value] if isinstance(value, list) else value

    def _mapping(self, start: Any, depth: int) -> Any:
        get = self._get
        out: dict[str, Any] = {}
        merged: list[Any] = []
        while type(event := get()) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent:
                raise YamlError(_line(event), "a key is not a text")
            key = event.value
            value = self._value(get(), depth)
            if key == "<<" and event.implicit[0] and not self._lines:
                merged.append(value)
                continue
            if key in out and not self._lines:
                raise YamlError(_line(event), f"the key {key!r} is given twice")
            out[key] = value
        for value in merged:
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    out = part | out
        return Lines(_line(start), out) if self._lines else out

    def _sequence(self, start: Any, depth: int) -> Any:
        get, out = self._get, []
        while type(event := get()) is not yaml.SequenceEndEvent:
            out.append(self._value(event, depth))
        return Lines(_line(start), dict(enumerate(out))) if self._lines else out


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _documents(text: str, *, lines: bool) -> Iterator[tuple[int, Any]]:
    try:
        yield from _Reader(text, lines=lines).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        last = len(text.splitlines()) or 1  # the end of the text is behind its last line
        line = min(mark.line + 1, last) if mark is not None else 1
        raise YamlError(line, tab_problem(text, line) or problem or "not YAML") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        position = getattr(error, "position", 0)
        raise YamlError(text.count("\n", 0, position) + 1, getattr(error, "reason", "not YAML")) from None


def load(text: str) -> Iterator[tuple[int, Any]]:
    """Iterate over (1-based first line, value) of each document. Raises YamlError."""
    return _documents(text, lines=False)


def load_lines(text: str) -> Iterator[Lines]:
    """Iterate over the lines of each document's values. Raises YamlError."""
    return (value for _, value in _documents(text, lines=True))


def find_line(lines: Lines, path: FieldPath) -> int:
    """Return the line of a field, or of the nearest value around it."""
    for step in path:
        inner = lines.inside.get(step)
        if inner is None:
            break
        lines = inner
    return lines.line
