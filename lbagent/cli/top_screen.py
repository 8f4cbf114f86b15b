"""What `lbagent top` draws, and what its keys do. It has no terminal: texts out, keys in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lbagent.cli.output import printable

Row = dict[str, Any]
SERVICES, BACKENDS, DROPS = "services", "backends", "drops"
VIEW_KEYS = {"s": SERVICES, "b": BACKENDS, "d": DROPS}
REFUSED = ("drop_", "reject_")  # reasons of packets that did not reach a backend
HELP = "s services  b backends  d drops  < > sort  / filter  p pause  q quit"
GAP = "  "
ENTER, BACKSPACE, ESCAPE = ("\n", "\r"), ("\x7f", "\b"), "\x1b"
UNITS = ("", "k", "M", "G", "T")


class Shown(NamedTuple):
    """A column: numbers are to the right, and the highest first."""

    title: str
    key: str
    is_number: bool = True


RATES = (Shown("PPS", "pps"), Shown("BPS", "bps"))
COLUMNS: dict[str, tuple[Shown, ...]] = {
    SERVICES: (
        Shown("SERVICE", "service", is_number=False),
        Shown("FRONTEND", "frontend", is_number=False),
        *RATES,
        Shown("NEW/S", "new_flows_ps"),
        Shown("FLOWS", "flows"),
    ),
    BACKENDS: (
        Shown("BACKEND", "backend", is_number=False),
        Shown("STATE", "state", is_number=False),
        Shown("NODE", "node", is_number=False),
        *RATES,
        Shown("FLOWS", "flows"),
    ),
    DROPS: (Shown("REASON", "reason", is_number=False), *RATES),
}


class TopScreen:
    """The choices of the person, and the last rates."""

    def __init__(self) -> None:
        self.view = SERVICES
        self.is_paused = False
        self.is_over = False
        self.filter = ""
        self.trouble = ""  # one sentence, where the agent does not answer
        self._typed: str | None = None  # the filter while it is typed
        self._sorted = {view: _place(columns, "pps") for view, columns in COLUMNS.items()}
        self._rates: Row | None = None

    def take(self, rates: Row) -> None:
        """Show these rates, unless it is paused."""
        self.trouble = ""
        if not self.is_paused:
            self._rates = rates

    def key(self, char: str) -> None:
        """Do what a key means."""
        if self._typed is not None:
            self._type(char)
        elif char in VIEW_KEYS:
            self.view = VIEW_KEYS[char]
        elif char in ("<", ">"):
            count = len(COLUMNS[self.view])
            self._sorted[self.view] = (self._sorted[self.view] + (1 if char == ">" else -1)) % count
        elif char == "/":
            self._typed = ""
        elif char == "p":
            self.is_paused = not self.is_paused
        elif char == "q":
            self.is_over = True

    def _type(self, char: str) -> None:
        assert self._typed is not None
        if char in ENTER:
            self.filter, self._typed = self._typed, None
        elif char == ESCAPE:
            self.filter, self._typed = "", None
        elif char in BACKSPACE:
            self._typed = self._typed[:-1]
        elif char.isprintable():
            self._typed += char

    def lines(self, width: int, height: int) -> list[str]:
        """Return the lines of a screen of this size; the third one is the head of the table."""
        found = [self._first(), self._second()]
        found += table(self.view, self._rates or {}, self._wanted, self._sorted[self.view])
        return [line[: max(0, width - 1)] for line in found[: max(0, height)]]

    def _wanted(self, row: Row) -> bool:
        word = (self.filter if self._typed is None else self._typed).lower()
        return any(word in str(value).lower() for value in row.values() if isinstance(value, str))

    def _first(self) -> str:
        if self._rates is None:
            return "lbagent top: the first interval"
        state = "  paused" if self.is_paused else ""
        return f"lbagent top  {total_text(self._rates)}{state}"

    def _second(self) -> str:
        if self._typed is not None:
            return f"filter: {self._typed}_"
        if self.trouble:
            return printable(self.trouble)
        return f"filter: {printable(self.filter)}  ({HELP})" if self.filter else HELP


def total_text(rates: Row) -> str:
    """Return the sums in one line."""
    total = rates["total"]
    return GAP.join(
        f"{word} {number_text(total[key])}"
        for word, key in (("pps", "pps"), ("bps", "bps"), ("new flows/s", "new_flows_ps"), ("flows", "flows"))
    )


def table(view: str, rates: Row, wanted: Callable[[Row], bool] = lambda _: True, by: int | None = None) -> list[str]:
    """Return the lines of a view, its head first; the title of the column by which it is sorted (a place) has a mark."""
    columns = COLUMNS[view]
    rows = [row for row in _rows(view, rates) if wanted(row)]
    if by is not None:
        rows.sort(key=_order(columns[by]))
    grid = [[f"{each.title}*" if place == by else each.title for place, each in enumerate(columns)]]
    grid += [[_cell(each, row) for each in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [_line(columns, widths, line) for line in grid]


def _rows(view: str, rates: Row) -> list[Row]:
    if view == DROPS:
        return [row for row in rates.get("reasons", ()) if row["reason"].startswith(REFUSED)]
    return list(rates.get(view, ()))


def _order(column: Shown) -> Callable[[Row], Any]:
    if column.is_number:
        return lambda row: -1.0 * (row[column.key] if row[column.key] is not None else -1)
    return lambda row: str(row[column.key])


def _cell(column: Shown, row: Row) -> str:
    return number_text(row[column.key]) if column.is_number else printable(row[column.key]) or "-"


def _line(columns: Sequence[Shown], widths: Sequence[int], cells: Sequence[str]) -> str:
    return GAP.join(
        text.rjust(width) if each.is_number else text.ljust(width)
        for each, width, text in zip(columns, widths, cells, strict=True)
    ).rstrip()


def number_text(value: float | None) -> str:
    """Return 12, 1.2k, 34.5M; `-` for a value that is not known."""
    if value is None:
        return "-"
    place = 0
    while value >= 1000 and place < len(UNITS) - 1:
        value, place = value / 1000, place + 1
    return f"{value:.1f}{UNITS[place]}" if value < 100 and (place or value % 1) else f"{value:.0f}{UNITS[place]}"


def _place(columns: Sequence[Shown], key: str) -> int:
    return next(place for place, each in enumerate(columns) if each.key == key)
