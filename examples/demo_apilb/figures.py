"""Figures of a period from a kubelet's records (pure)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]  # its fields: kubelet.py


@dataclass(frozen=True)
class Figures:
    """Requests and watches of one kubelet in a period."""

    answered: Counter[str] = field(default_factory=Counter)  # requests by server
    failures: tuple[Record, ...] = ()  # failed attempts of requests
    slowest_s: float = 0.0  # from a request's first attempt to its answer
    longest_gap_s: float = 0.0  # between two answers
    opened_again: int = 0  # watches that reconnected
    longest_silence_s: float = 0.0  # of a watch that reconnected

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        silence = f"{self.longest_silence_s:.2f} s" if self.opened_again else "-"
        counts = (self.answered.total(), len(self.failures))
        return (*map(str, counts), f"{self.longest_gap_s:.2f} s", str(self.opened_again), silence)


HEAD = ("answered", "tries failed", "longest gap", "watches again", "longest silence")


def figures(records: Iterable[Record], since: float, until: float) -> Figures:
    """Return the figures of a period; a gap also counts from its start and to its end."""
    found = [each for each in records if since <= each["at"] <= until]
    answers = [each for each in found if each["what"] == "answer"]
    again = [each["silent_s"] for each in found if each["what"] == "open" and each["silent_s"]]
    moments = [since, *sorted(each["at"] for each in answers), until]
    return Figures(
        answered=Counter(each["server"] for each in answers),
        failures=tuple(each for each in found if each["what"] == "failed"),
        slowest_s=max((each["at"] - each["asked"] for each in answers), default=0.0),
        longest_gap_s=max(after - before for before, after in itertools.pairwise(moments)),
        opened_again=len(again),
        longest_silence_s=max(again, default=0.0),
    )


def watching(records: Iterable[Record], at: float) -> dict[int, str]:
    """Return the server of each watch at a time."""
    return {each["watch"]: each["server"] for each in records if each["what"] == "open" and each["at"] <= at}


def stranded(records: Sequence[Record], server: str, since: float) -> set[int]:
    """Return the watches that a server had at a time and that no other server has since."""
    had = {watch for watch, where in watching(records, since).items() if where == server}
    later = [each for each in records if each["what"] == "open" and each["at"] > since and each["server"] != server]
    return had - {each["watch"] for each in later}


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows under the head; the first cell is the row's name, left-aligned."""
    whole = [("", *HEAD), *rows]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    lines = [
        "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))])
        for name, *cells in whole
    ]
    return "\n".join(lines)
