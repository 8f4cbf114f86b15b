"""One mapping of a pool document, read field by field: an error is recorded, and the field counts as not given."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from lbagent.apilb.files.pool_document import PoolDocument
from lbagent.apilb.instance import Secret
from lbagent.durations import parse_duration
from lbagent.textfile.field_path import FieldPath
from lbagent.value_errors import shown, wrong_type

E = TypeVar("E", bound=StrEnum)
Check = Callable[[str], object]  # raises ValueError


class Section:
    """A mapping at a place. As in the seed's Go, null, an empty text and an empty list read as not given."""

    def __init__(self, document: PoolDocument, value: Any, at: FieldPath) -> None:
        self._document, self.at = document, at
        self._asked: dict[str, None] = {}
        self._faulty: set[str] = set()
        self._values: dict[str, Any] = {}
        if isinstance(value, dict):
            self._values = value
        elif value is not None:
            document.fault(at, wrong_type(value, "object"))

    def __contains__(self, key: str) -> bool:
        """Return whether the field is there and not null."""
        return self._values.get(key) is not None

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(self._values)

    def is_faulty(self, key: str) -> bool:
        """Return whether an error of a field is recorded."""
        return key in self._faulty

    def value(self, key: str) -> Any:
        """Return the raw value of a field."""
        self._asked[key] = None
        return self._values.get(key)

    def fault(self, key: str, problem: str) -> None:
        """Record an error of a field."""
        self._fault((key,), problem)

    def _fault(self, key: FieldPath, problem: str) -> None:
        self._faulty.add(str(key[0]))
        self._document.fault((*self.at, *key), problem)

    def text(self, key: str, check: Check | None = None) -> str | None:
        """Return a text that `check` accepts."""
        value = self.value(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self.fault(key, wrong_type(value, "str"))
            return None
        return value if self._passes(value, (key,), check) else None

    def secret(self, key: str, check: Check | None = None) -> Secret | None:
        """Return a secret; no message shows it."""
        value = self.value(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self.fault(key, "it is not a text; put it into quotes")
            return None
        return Secret(value) if self._passes(value, (key,), check) else None

    def words(self, key: str, check: Check | None = None) -> tuple[str, ...] | None:
        """Return a list of texts that `check` accepts."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self.fault(key, wrong_type(value, "array"))
            return None
        for at, each in enumerate(value):
            if not isinstance(each, str):
                self._fault((key, at), wrong_type(each, "str"))
        found = [
            each for at, each in enumerate(value) if isinstance(each, str) and self._passes(each, (key, at), check)
        ]
        return tuple(found) if len(found) == len(value) and found else None

    def choice(self, key: str, kind: type[E]) -> E | None:
        """Return one of a few words."""
        value = self.text(key)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            self.fault(key, f"unknown value {shown(value)}; one of {', '.join(kind)} is possible")
            return None

    def seconds(self, key: str, least: float, most: float) -> float | None:
        """Return the seconds of `2s`, `1m30s`, `300ms` or `2`."""
        value = self.value(key)
        if value is None or value == "":
            return None
        if isinstance(value, bool) or not isinstance(value, int | str):
            self.fault(key, wrong_type(value, "a time like 2s, 300ms or 1h"))
            return None
        try:
            found = value if isinstance(value, int) else 0.0 if value == "0" else parse_duration(value)
        except ValueError:
            self.fault(key, f"{shown(value)} is not a time like 2s, 300ms or 1h")
            return None
        if not least <= found <= most:
            self.fault(key, f"{shown(value)} is not in {least:g}s-{most:g}s")
            return None
        return float(found)

    def number(self, key: str, least: int, most: int) -> int | None:
        """Return a number in bounds."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, wrong_type(value, "int"))
        elif not least <= value <= most:
            self.fault(key, f"{value} is not in {least}-{most}")
        else:
            return value
        return None

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return value
        self.fault(key, wrong_type(value, "bool"))
        return None

    def section(self, key: str) -> Section | None:
        """Return a mapping in this one."""
        value = self.value(key)
        return None if value is None else Section(self._document, value, (*self.at, key))

    def sections(self, key: str) -> list[Section]:
        """Return the mappings of a list."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault(key, wrong_type(value, "array"))
            return []
        return [Section(self._document, each, (*self.at, key, at)) for at, each in enumerate(value)]

    def note_unknown_keys(self) -> None:
        """Warn of each key that was not read."""
        for key in self._values.keys() - self._asked.keys():
            near = get_close_matches(key, list(self._asked), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            self._document.warn((*self.at, key), f"unknown key{hint}")

    def _passes(self, value: str, key: FieldPath, check: Check | None) -> bool:
        try:
            if check is not None:
                check(value)
        except ValueError as error:
            self._fault(key, str(error))
            return False
        return True
