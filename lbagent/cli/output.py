"""How rows are printed: tables without borders, JSON, YAML, names; sorting and watching.

Data goes to stdout, everything else to stderr. Columns are 3 spaces apart, fewer where that lets a table fit into 80 columns
(or the terminal's); long names are cut where even that is too wide, also in a pipe. Headers are upper-case, the order is stable.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from lbagent.errors import AgentUnreachable, ConfigError

if TYPE_CHECKING:
    from lbagent.api.capability import ListedFields
    from lbagent.api.client import AgentClient

Row = dict[str, Any]
GAP = "   "
WIDTH = 80  # width of a table in columns when no terminal reports its own
LEAST_CUT = 12  # characters that remain of a cut cell
FORMATS = ("table", "wide", "json", "yaml", "name")
WATCH_RETRY_DELAY_S = 1.0  # while watching, after the agent ended
POLL_S = 2.0  # how long `| head -1` may hang: only a poll detects a closed pipe
REFRESH_S = 30.0  # flows change without a generation


class Column(NamedTuple):
    """One column: `value` makes the cell of a row; `wide` shows it with -o wide only; its cells may be `cut`."""

    header: str
    value: Callable[[Row], object]
    wide: bool = False
    cut: bool = False


class Listing(NamedTuple):
    """How one kind of row is shown. `name` is the line of -o name, `key` identifies a row while watching."""

    columns: Sequence[Column]
    name: Callable[[Row], str]
    key: Callable[[Row], object]


def columns_of(fields: ListedFields[Any], rows: Sequence[Row] = (), *, always: bool = False) -> list[Column]:
    """Return the columns of a list for these rows; `always` includes those that only some rows need."""
    return [
        Column(each.title, each.cell_of, each.wide if always else each.is_wide(rows), each.cut) for each in fields.shown
    ]


class Style(NamedTuple):
    """The values of the output options."""

    form: str = "table"
    headers: bool = True
    sort_by: str = ""
    watch: bool = False


def show(listing: Listing, rows: list[Row], style: Style) -> None:
    """Print rows."""
    rows = sort_rows(listing, rows, style.sort_by)
    if style.form in ("json", "yaml"):
        document(rows, style.form)
    elif style.form == "name":
        for text in dict.fromkeys(map(listing.name, rows)):
            click.echo(printable(text))
    else:
        wide = style.form == "wide"
        lines = table(listing.columns, rows, wide=wide, headers=style.headers, fit=not wide)
        if lines:
            click.echo("\n".join(lines))


def document(value: object, form: str) -> None:
    """Print a value as JSON or YAML."""
    if form == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=not _unicode()))
        return
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    click.echo(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=_unicode()), nl=False)


def _unicode() -> bool:
    """Return whether stdout can encode every character; else JSON and YAML write their own escapes."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def say_nothing_found(what: str, rows: list[Row], asked: dict[str, str], style: Style) -> None:
    """Print on stderr that no row matches the filters; for an unfiltered list, JSON and names print nothing."""
    given = [f"{name} {value}" for name, value in asked.items() if value]
    if given and not rows and style.form in ("table", "wide"):
        click.echo(f"no {what} with {', '.join(given)} is served here", err=True)


def table(columns: Sequence[Column], rows: Iterable[Row], *, wide: bool, headers: bool, fit: bool = False) -> list[str]:
    """Return the lines of a table; the last column is not padded, an empty cell is `-`.

    With `fit`, a table that is too wide gets narrower gaps first, then cut cells.
    """
    shown = [column for column in columns if wide or not column.wide]
    grid = [[cell(column.value(row)) for column in shown] for row in rows]
    if headers:
        grid.insert(0, [column.header for column in shown])
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    gap = _fit(grid, widths, [column.cut for column in shown]) if fit and widths else GAP
    return [gap.join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in grid]


def _fit(grid: list[list[str]], widths: list[int], cut: list[bool]) -> str:
    """Return the widest gap with which a table fits; when none does, cut the cells of one column, down to LEAST_CUT."""
    width = _output_width()
    for gap in (GAP, GAP[:2], GAP[:1]):
        if sum(widths) + len(gap) * (len(widths) - 1) <= width:
            return gap
    if True not in cut:
        return GAP
    at = cut.index(True)
    room = width - sum(widths) - len(widths) + 1 + widths[at]
    widths[at] = min(max(room, LEAST_CUT), widths[at])
    for line in grid:
        if len(line[at]) > widths[at]:
            line[at] = line[at][: widths[at] - 1] + ("…" if _unicode() else "~")
    return GAP[:1]


def _output_width() -> int:
    """Return the columns that a line may have: $COLUMNS, else the terminal's, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):  # a pipe; a test's stream
        return WIDTH


def cell(value: object) -> str:
    """Return the text of a value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return "-" if value is None or value == "" else printable(str(value))


def printable(text: str) -> str:
    """Return a text without line breaks and terminal controls: names come from manifests."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def sort_rows(listing: Listing, rows: list[Row], sort_by: str) -> list[Row]:
    """Sort by a column's header or a field's name, numbers in texts by value. Raises ConfigError for an unknown one."""
    if not sort_by:
        return rows
    word = sort_by.lower().strip(".{}")
    for column in listing.columns:
        if column.header.lower() == word:
            return sorted(rows, key=lambda row: natural(column.value(row)))
    if not rows or word in rows[0]:
        return sorted(rows, key=lambda row: natural(row[word]))
    known = sorted({column.header.lower() for column in listing.columns} | set(rows[0]))
    raise ConfigError(f"--sort-by {sort_by}: no such column; use one of {', '.join(known)}")


def natural(value: object) -> tuple[tuple[int, int, str], ...]:
    """Return a key by which 10.0.0.9 comes before 10.0.0.10, and 9 before 10."""
    parts = re.split(r"(\d+)", cell(value))
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def watch(client: AgentClient, fetch: Callable[[], list[Row]], listing: Listing, style: Style) -> None:
    """Print the rows, then each row again when it changed, until interrupted. Continues over a restart of the agent."""
    generation = client.status()["generation"]
    known: dict[object, Row] = {}
    first = True
    while True:
        try:
            rows = fetch()
            _show_changes(listing, known, rows, style, first=first)
            known = {listing.key(row): row for row in rows}
            first = False
            generation = _until_change(client, generation)
        except AgentUnreachable as error:
            click.echo(f"{error}; waiting for it", err=True)
            generation = _reconnect(client)


def _until_change(client: AgentClient, generation: int) -> int:
    deadline = time.monotonic() + REFRESH_S
    while True:
        now = client.wait_change(generation, POLL_S)
        require_reader()
        if now != generation or time.monotonic() >= deadline:
            return now


def require_reader() -> None:
    """Raise BrokenPipeError when the reader of stdout closed it: without a change nothing is written, so no write fails."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        left = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):  # no descriptor: a test's stream
        return
    if left:
        raise BrokenPipeError


def _reconnect(client: AgentClient) -> int:
    while True:
        require_reader()
        time.sleep(WATCH_RETRY_DELAY_S)
        try:
            status = client.status()
        except AgentUnreachable:
            continue
        if status["ready"]:
            return int(status["generation"])


def _show_changes(listing: Listing, known: dict[object, Row], rows: list[Row], style: Style, *, first: bool) -> None:
    changed = [row for row in sort_rows(listing, rows, style.sort_by) if known.get(listing.key(row)) != row]
    left = {listing.key(row) for row in rows}
    gone = [row for key, row in known.items() if key not in left]
    if style.form in ("json", "yaml"):  # YAML's flow style is JSON: one line a change in both
        for row in changed:
            click.echo(json.dumps({"change": "set", "object": row}, ensure_ascii=not _unicode()))
        for row in gone:
            click.echo(json.dumps({"change": "removed", "object": row}, ensure_ascii=not _unicode()))
        return
    if changed:
        show(listing, changed, style._replace(sort_by="", headers=style.headers and first))
    for row in gone:
        click.echo(f"removed{GAP}{printable(listing.name(row))}{GAP}{cell(listing.columns[1].value(row))}")
