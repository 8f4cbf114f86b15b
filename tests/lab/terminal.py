"""A terminal for programs that draw: a pty, and the screen that a vt100 shows after what they wrote."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tests.lab.netns import LabError

_SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\x1b[()].|\x1b[=>78MDE]|[\x00\x07\x0e\x0f]")


class Screen:
    """What a vt100 of this size shows."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        """Take output. Raises LabError for a sequence that it does not know."""
        text, place = self._rest + text, 0
        self._rest = ""
        while place < len(text):
            found = _SEQUENCE.match(text, place)
            if found:
                self._control(*found.groups())
                place = found.end()
            elif text[place] == "\x1b":
                if len(text) - place > 20:
                    raise LabError(f"not a sequence of a vt100: {text[place : place + 20]!r}")
                self._rest = text[place:]  # the end of it comes later
                return
            else:
                self._put(text[place])
                place += 1

    def _put(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._row = min(self._row + 1, self.rows - 1)
        elif char == "\b":
            self._column = max(0, self._column - 1)
        elif char == "\t":
            self._column = min(self._column // 8 * 8 + 8, self.columns - 1)
        elif self._column < self.columns:
            self._cells[self._row][self._column] = char
            self._column += 1

    def _control(self, values: str | None, name: str | None) -> None:
        numbers = [int(each) for each in (values or "").strip("?").split(";") if each]
        first = numbers[0] if numbers else 1
        if name == "H":
            self._row, self._column = (numbers[0] - 1, numbers[1] - 1) if len(numbers) == 2 else (first - 1, 0)
        elif name in ("A", "B"):
            self._row += first if name == "B" else -first
        elif name in ("C", "D"):
            self._column += first if name == "C" else -first
        elif name in ("J", "K"):
            kind = numbers[0] if numbers else 0
            begin, end = (0, self._column + 1) if kind == 1 else (0 if kind == 2 else self._column, self.columns)
            self._cells[self._row][begin:end] = [" "] * (end - begin)
            if name == "J":
                rows = {0: range(self._row + 1, self.rows), 1: range(self._row), 2: range(self.rows)}[kind]
                for row in rows:
                    self._cells[row] = [" "] * self.columns

    @property
    def lines(self) -> list[str]:
        """The lines, without blanks at their ends."""
        return ["".join(cells).rstrip() for cells in self._cells]


class Terminal:
    """A program in a terminal, for the time of a with statement."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], columns: int = 100, rows: int = 30) -> None:
        self._argv, self._env = argv, {**env, "TERM": "vt100"}
        self.screen = Screen(columns, rows)

    def __enter__(self) -> Self:
        """Start it."""
        self._ours, its = pty.openpty()
        self.before = termios.tcgetattr(its)
        self._resize()
        self.process = subprocess.Popen(
            self._argv, stdin=its, stdout=its, stderr=its, env=self._env, start_new_session=True
        )
        self._its = its
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._its)

    def _resize(self) -> None:
        size = struct.pack("HHHH", self.screen.rows, self.screen.columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    @property
    def modes(self) -> list[object]:
        """The terminal's modes, as termios has them."""
        return list(termios.tcgetattr(self._its))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    def wait(self, wanted: Callable[[list[str]], object], timeout_s: float = 15.0) -> list[str]:
        """Wait until the screen is as wanted; return its lines. Raises LabError."""
        end = time.monotonic() + timeout_s
        while not wanted(self.screen.lines):
            if time.monotonic() > end:
                shown = "\n".join(self.screen.lines)
                raise LabError(f"not in {timeout_s:g} s; the screen shows:\n{shown}")
            if select.select([self._ours], [], [], 0.1)[0]:
                self.screen.feed(os.read(self._ours, 65536).decode(errors="replace"))
        return self.screen.lines
