"""Checks of single fields of a YAML file. They raise ConfigError with the text `FILE:LINE: FIELD: what is wrong`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import msgspec

from lbagent.durations import DurationSyntax, parse_duration
from lbagent.errors import ConfigError
from lbagent.pools.label_selector import OPERATORS, LabelSelector, Requirement
from lbagent.textfile import yamldoc
from lbagent.textfile.field_path import FieldPath, path_text
from lbagent.textfile.shape_errors import Fault, ShapeError, shape_error
from lbagent.textfile.yamldoc import YamlError
from lbagent.value_errors import wrong_type

T = TypeVar("T")
_LABELS, _EXPRESSIONS = "matchLabels", "matchExpressions"
_NOUNS: dict[tuple[str, ...], str] = {("int", "str"): "a time", ("object", "null"): "object"}


def only_document(text: str, path: str) -> Any:
    """Return the document of a YAML text, an empty one for an empty text. `path` is its name in messages. Raises ConfigError."""
    try:
        documents = [value for _, value in yamldoc.load(text) if value is not None]
    except YamlError as error:
        raise ConfigError(f"not YAML: {error.problem}", file=path, line=error.line) from None
    if len(documents) > 1:
        raise ConfigError(f"one document is wanted, not {len(documents)}", file=path)
    return documents[0] if documents else {}


class FieldChecks:
    """The fields of one text; `path` is its file's name in messages."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path

    def refuse(self, field: FieldPath, problem: str) -> NoReturn:
        """Raise ConfigError with the line of the field, or of the nearest enclosing value."""
        lines = next(yamldoc.load_lines(self.text), None)
        line = yamldoc.find_line(lines, field) if lines else 1
        raise ConfigError(f"{path_text(field)}: {problem}" if field else problem, file=self.path, line=line)

    def converted(self, document: Any, shape: type[T], keys: Iterable[str]) -> T:
        """Return a document as a record: checks types, unknown keys (`keys` are the known ones) and missing ones."""
        try:
            return msgspec.convert(document, shape)
        except msgspec.ValidationError as error:
            self._refuse_shape(document, shape_error(error), keys)

    def _refuse_shape(self, value: Any, error: ShapeError, keys: Iterable[str], at: FieldPath = ()) -> NoReturn:
        """Raise ConfigError for msgspec's error about the value at `at`."""
        path = at + error.path
        if error.fault is Fault.UNKNOWN_KEY:
            near = difflib.get_close_matches(error.key, list(keys), n=1)
            self.refuse((*path, error.key), "unknown key" + (f"; did you mean {near[0]!r}?" if near else ""))
        if error.fault is Fault.MISSING_KEY:
            self.refuse((*path, error.key), "it is missing")
        if error.fault is Fault.KEY_IS_NO_TEXT:
            self.refuse(path, "a key is not a text")
        for step in error.path:
            value = value[step]
        noun = _NOUNS.get(error.types, " | ".join(error.types))
        self.refuse(path, wrong_type(value, noun) if noun else error.text)

    def selector(self, given: dict[str, Any], at: FieldPath) -> LabelSelector:
        """Return the requirements of matchLabels and matchExpressions, or of plain labels."""
        if not {_LABELS, _EXPRESSIONS} & given.keys():
            return LabelSelector(tuple(self._labels(given, at)))
        if unknown := given.keys() - {_LABELS, _EXPRESSIONS}:
            self.refuse((*at, min(unknown)), f"unknown key; {_LABELS} and {_EXPRESSIONS} are possible")
        labels, expressions = given.get(_LABELS) or {}, given.get(_EXPRESSIONS) or []
        if not isinstance(labels, dict):
            self.refuse((*at, _LABELS), wrong_type(labels, "object"))
        if not isinstance(expressions, list):
            self.refuse((*at, _EXPRESSIONS), wrong_type(expressions, "array"))
        found = self._labels(labels, (*at, _LABELS))
        found += [self._requirement(each, (*at, _EXPRESSIONS, index)) for index, each in enumerate(expressions)]
        return LabelSelector(tuple(found))

    def _labels(self, given: dict[str, Any], at: FieldPath) -> list[Requirement]:
        for key, text in given.items():
            if not isinstance(text, str):
                self.refuse((*at, key), wrong_type(text, "str"))
        return [Requirement(key, "In", frozenset((text,))) for key, text in given.items()]

    def _requirement(self, given: Any, at: FieldPath) -> Requirement:
        try:
            found = msgspec.convert(given, Requirement)
        except msgspec.ValidationError as error:
            self._refuse_shape(given, shape_error(error), (), at)
        if found.operator not in OPERATORS:
            self.refuse(
                (*at, "operator"), f"unknown value {found.operator!r}; one of {', '.join(OPERATORS)} is possible"
            )
        if bool(found.values) != (found.operator in ("In", "NotIn")):
            self.refuse(
                (*at, "values"), f"{found.operator} has {'no values' if found.values else 'at least one value'}"
            )
        return found

    def unique(self, names: list[str], field: Callable[[int], FieldPath]) -> None:
        """Reject a duplicate name; `field` returns the place of an index."""
        seen: dict[str, int] = {}
        for index, name in enumerate(names):
            if seen.setdefault(name, index) != index:
                self.refuse(field(index), f"{name!r} is given twice")

    def seconds(self, given: str | int, at: FieldPath, least: float, most: float) -> float:
        """Return the seconds of `2s`, `300ms` or `2`."""
        text = f"{given}s" if isinstance(given, int) else given
        try:
            found = parse_duration(text, DurationSyntax.ONE_PART)
        except ValueError:
            self.refuse(at, DurationSyntax.ONE_PART.problem.format(given))
        if not least <= found <= most:
            self.refuse(at, f"{text!r} is not in {least:g}s-{most:g}s")
        return found

    def between(self, number: int, at: FieldPath, least: int, most: int) -> int:
        """Return a number that is in bounds."""
        if not least <= number <= most:
            self.refuse(at, f"{number} is not in {least}-{most}")
        return number

    def value(self, read: Callable[[str], T], text: str, at: FieldPath) -> T:
        """Return the parsed value of a text; `read` raises ValueError."""
        try:
            return read(text)
        except ValueError as error:
            self.refuse(at, str(error))
