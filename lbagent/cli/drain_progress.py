"""How far a drain is: a bar on a terminal, else a line for each change, or JSON lines."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import click

Row = dict[str, Any]  # DrainRow
WINDOW_S = 60.0  # the rate is that of this time
MIN_RATE_S = 1.0  # a shorter time gives no rate
BAR_CELLS = 24
ERASE_LINE = "\r\x1b[K"


class EndRate:
    """How fast flows end: counts of the last WINDOW_S. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, now: float, flows: int) -> None:
        """Take a count; where there are more flows than before, it begins again."""
        if self._counts and flows > self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((now, flows))
        while len(self._counts) > 2 and now - self._counts[1][0] >= WINDOW_S:
            self._counts.popleft()

    def eta_s(self) -> float | None:
        """Return in how many seconds the last flow ends at this rate; None without one."""
        if not self._counts:
            return None
        (then, before), (now, flows) = self._counts[0], self._counts[-1]
        if not flows:
            return 0.0
        if now - then < MIN_RATE_S or flows >= before:
            return None
        return round(flows * (now - then) / (before - flows), 1)


class DrainReport:
    """Prints what a drain waits for. The result is on stdout, what it waits for on stderr; with `json` all is on stdout."""

    def __init__(self, form: str) -> None:
        self._is_json = form == "json"
        self._has_bar = form == "text" and sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
        self._rates: dict[str, EndRate] = {}
        self._sum = EndRate()
        self._shown: object = None
        self._rows: dict[str, Row] = {}
        self._lines: dict[str, tuple[object, ...]] = {}  # what was printed last of each backend
        self._is_bar_open = False

    def begin(self, names: Sequence[str]) -> None:
        """Print which backends are drained."""
        if not self._is_json:
            text = f"{', '.join(names)} in maintenance; waiting for the next count of flows"
            click.echo(text, err=True)

    def show(self, rows: Sequence[Row], now: float) -> None:
        """Show the drains that have not ended before: DrainRow of each."""
        self._rows |= {row["address"]: row for row in rows}
        if not all(row["counted"] or row["state"] == "drained" for row in rows):
            return
        for row in rows:
            self._rates.setdefault(row["address"], EndRate()).add(now, max(0, row["flows"]))
        left = sum(max(0, row["flows"]) for row in rows)
        self._sum.add(now, left)
        if self._is_json:
            for row in rows:
                self._line(row["address"], row["flows"], row["state"])
        elif self._has_bar:
            self._bar(left)
        elif any(row["state"] != "drained" for row in rows):
            self._changed_text()

    def _line(self, address: str, flows: int, state: str) -> None:
        """Print a JSON line where flows or state have changed."""
        word = "draining" if state == "timed-out" else state
        if self._lines.get(address) != (flows, word):
            self._lines[address] = (flows, word)
            eta_s = self._rates[address].eta_s() if word == "draining" and address in self._rates else 0.0
            click.echo(json.dumps({"address": address, "flows": flows, "eta_s": eta_s, "state": word}))

    def _changed_text(self) -> None:
        text = self.left([name for name, row in self._rows.items() if row["state"] != "drained"])
        if text != self._shown:
            self._shown = text
            click.echo(f"{text}{_eta(self._sum.eta_s())}", err=True)

    def _bar(self, left: int) -> None:
        at_start = max(left, sum(max(0, row["flows_at_start"]) for row in self._rows.values()))
        done = BAR_CELLS if not at_start else BAR_CELLS * (at_start - left) // at_start
        noun = "flow is" if left == 1 else "flows are"
        text = f"[{'#' * done}{'.' * (BAR_CELLS - done)}] {left} of {at_start} {noun} left{_eta(self._sum.eta_s())}"
        width = shutil.get_terminal_size().columns
        click.echo(f"{ERASE_LINE}{text[: max(1, width - 1)]}", err=True, nl=False)
        self._is_bar_open = True

    def end_bar(self) -> None:
        """End the line of the bar."""
        if self._is_bar_open:
            self._is_bar_open = False
            click.echo("", err=True)

    def left(self, names: Sequence[str]) -> str:
        """Return what a drain waits for: flows, or the sweep that counts them."""
        return left_text({name: self._rows[name]["flows"] for name in names if name in self._rows})

    def finish(self, names: Sequence[str], reset: Sequence[str]) -> None:
        """Print the end of each backend's drain; flows of `reset` were reset."""
        for name in names:
            if self._is_json:
                self._line(name, max(0, self._rows[name]["flows"]), "reset" if name in reset else "drained")
            elif name in reset:
                click.echo(f"{name} reset: {max(0, self._rows[name]['flows'])} flows were left")
            else:
                click.echo(f"{name} drained")


def left_text(left: Mapping[str, int]) -> str:
    """Return the flows that are left, by backend."""
    counts = ", ".join(f"{name} {count}" for name, count in left.items() if count > 0)
    return f"flows are left: {counts}" if counts else "no sweep has counted the flows yet (--sweep-interval)"


def _eta(seconds: float | None) -> str:
    if not seconds:
        return ""
    if seconds < 90:
        return f"; about {max(1, round(seconds))} s"
    return f"; about {round(seconds / 60)} min" if seconds < 5400 else f"; about {round(seconds / 3600)} h"
