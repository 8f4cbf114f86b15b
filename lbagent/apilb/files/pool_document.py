"""Several YAML files that form one document: config.yaml and state.yaml; and the line of each field."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from lbagent.errors import ConfigError
from lbagent.model.message import Message
from lbagent.textfile import yamldoc
from lbagent.textfile.field_path import FieldPath, path_text
from lbagent.textfile.read_text import MAX_BYTES, UnreadableManifest, decode_text, read_text
from lbagent.textfile.yamldoc import Lines, YamlError
from lbagent.value_errors import wrong_type

STDIN, STDIN_NAME = "-", "stdin"
_ONE_LINE = Lines(1, {})


class PoolFaults(ConfigError):
    """All errors of pool files, one per line."""

    def __init__(self, faults: Sequence[Message]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)


class PoolDocument:
    """The values of all files, and their errors."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.faults: list[Message] = []
        self.warnings: list[Message] = []
        self.files: list[str] = []
        self._file_of: dict[str, str] = {}  # top-level key -> file
        self._lines: dict[str, Lines] = {}  # file -> lines of its values

    def add(self, path: str, *, any_file: bool = False) -> None:
        """Read a file, `-` for stdin; errors are in `faults`. Only regular files are read, unless `any_file`."""
        name = STDIN_NAME if path == STDIN else path
        try:
            text = decode_text(_stdin(), name) if path == STDIN else read_text(path, any_file=any_file)
        except UnreadableManifest as error:
            self.faults.append(Message(error.message.problem, file=name, line=error.message.line))
        else:
            self.add_text(text, name)

    def add_text(self, text: str, path: str) -> None:
        """Add a text; `path` is its name in messages."""
        self.files.append(path)
        try:
            documents = [(lines, value) for lines, value in _both(text) if value is not None]
        except YamlError as error:
            self.faults.append(Message(f"not YAML: {error.problem}", file=path, line=error.line))
            return
        for at, (lines, value) in enumerate(documents):
            if at:
                problem = f"one document is wanted, not {len(documents)}"
                self.faults.append(Message(problem, file=path, line=lines.line))
                return
            self._lines[path] = lines
            self._take(value, path)

    def _take(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            self.faults.append(Message(wrong_type(value, "object"), file=path, line=self._lines[path].line))
            return
        for key, item in value.items():
            if key in self.values:
                line = yamldoc.find_line(self._lines[path], (key,))
                problem = f"{self._file_of[key]} has it already; all files are one document"
                self.faults.append(Message(problem, field=key, file=path, line=line))
            else:
                self.values[key], self._file_of[key] = item, path

    def fault(self, at: FieldPath, problem: str) -> None:
        """Record an error of a field; the line is the field's, or that of the nearest enclosing value."""
        self.faults.append(self.message(at, problem))

    def warn(self, at: FieldPath, problem: str) -> None:
        """Record a warning: something that has no effect."""
        self.warnings.append(self.message(at, problem, warning=True))

    def message(self, at: FieldPath, problem: str, *, warning: bool = False) -> Message:
        """Return a message about a field."""
        path = self._file_of.get(str(at[0])) if at else None
        path = path or (self.files[0] if self.files else "")
        line = yamldoc.find_line(self._lines.get(path, _ONE_LINE), at)
        return Message(problem, field=path_text(at), file=path, line=line, warning=warning)

    def raise_faults(self) -> None:
        """Raise PoolFaults with all errors, in the order of files and lines, if there are any."""
        if self.faults:
            raise PoolFaults(in_file_order([*self.faults, *self.warnings], self.files))


def in_file_order(messages: Iterable[Message], files: Sequence[str]) -> list[Message]:
    """Return messages in the order of files and lines, each once."""
    places = {path: at for at, path in enumerate(files)}
    unique = dict.fromkeys((each.file, each.line, each.field, each.problem, each) for each in messages)
    found = [each[-1] for each in unique]
    return sorted(found, key=lambda each: (places.get(each.file, len(places)), each.line))


def same_file(path: str, other: str) -> bool:
    """Return whether two paths are of one file."""
    return STDIN not in (path, other) and os.path.realpath(path) == os.path.realpath(other)


def _stdin() -> bytes:
    return sys.stdin.buffer.read(MAX_BYTES + 1)


def _both(text: str) -> Iterable[tuple[Lines, Any]]:
    values = [value for _, value in yamldoc.load(text)]
    return zip(yamldoc.load_lines(text), values, strict=True)
