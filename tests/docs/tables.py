"""The tables of docs/operations.md and docs/api.md, made from the code: `python -m tests.docs.tables` writes them, `--check` compares."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lbagent import errors
from lbagent.api.capabilities import every_capability
from lbagent.api.capabilities.services import MEMBERS
from lbagent.api.capability import ListedFields, Route
from lbagent.api.metrics_text import every_metric
from lbagent.checks.table import every_check
from lbagent.cli.setting_options import other_name_help
from lbagent.config import RELOADABLE, Option, options
from lbagent.maps.reasons import Reason, label

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE, API_FILE = DOCS / "operations.md", DOCS / "api.md"
LONGEST_CELL = 120
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SOURCE = Path(__file__).resolve().parents[2] / "lbagent" / "maps" / "reasons.py"
CODES = {
    0: "ok", 1: "failed, or something was refused, is failing or differs", 2: "usage: a flag, key, argument or configuration is wrong",
    3: "not found: service, backend, device", 4: "refused: invalid transition, last backend without --yes, another agent, conflict", 5: "no agent answers on the socket",
    6: "timed out", 77: "this kernel, or this version, lacks what is needed",
}  # fmt: skip


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Return a Markdown table; a cell that is longer than LONGEST_CELL continues in the row below."""
    lines = [head, tuple("---" for _ in head), *(line for row in rows for line in lines_of(row))]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def lines_of(row: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield a row, with what does not fit into its cells as further rows."""
    return zip_longest(*(pieces(cell) for cell in row), fillvalue="")


def pieces(cell: str) -> list[str]:
    """Return a text in parts of at most LONGEST_CELL characters; it is cut between sentences, else clauses, else words."""
    found = []
    while len(cell) > LONGEST_CELL:
        ends = [at for at in range(1, LONGEST_CELL + 1) if cell[at] == " " and cell.count("`", 0, at) % 2 == 0]
        at = next(max(fit) for marks in (".", ";:", ",)", "") if (fit := [at for at in ends if _ends(cell, at, marks)]))
        found.append(cell[:at])
        cell = cell[at + 1 :]
    return [*found, cell]


def _ends(cell: str, at: int, marks: str) -> bool:
    """Return whether a part may end before the blank at `at`: behind one of these marks, in the second half of the width."""
    return not marks or (cell[at - 1] in marks and at > LONGEST_CELL // 2)


def option_rows() -> Iterator[tuple[str, ...]]:
    for option in options():
        note = " Reloadable." if option.field in RELOADABLE else ""
        yield f"`{option.flag}`", f"`{option.env}`", value_of(option), option.help + note
        for name in option.names[1:]:
            yield f"`{name.flag}`", f"`{name.env}`", "-", other_name_help(option)


def value_of(option: Option) -> str:
    if option.choices:
        return " ".join(f"**`{word}`**" if word == option.default else f"`{word}`" for word in option.choices)
    if option.kind == "switch":
        return f"`{str(option.default).lower()}`"
    if option.kind == "list" and option.default:
        return f"`{','.join(option.default)}`"
    unit = f" {option.unit}" if option.unit else ""
    return f"`{option.default}`{unit}" if option.default not in ("", ()) else "-"


def reason_rows() -> Iterator[tuple[str, ...]]:
    """Take each reason's meaning from the comment beside its number."""
    said = dict(re.findall(r"^    ([A-Z0-9_]+) = \d+(?:  # (.*))?$", SOURCE.read_text(), re.MULTILINE))
    for reason in Reason:
        if reason:
            yield str(int(reason)), f"`{label(reason)}`", said[reason.name]


def metric_rows() -> Iterator[tuple[str, ...]]:
    for metric in every_metric(every_capability()):
        yield f"`{metric.name}`", metric.kind, ", ".join(f"`{name}`" for name in metric.labels), metric.help


def routes() -> list[Route[Any]]:
    return [route for capability in every_capability() for route in capability.routes]


def lists() -> list[ListedFields[Any]]:
    """Return each list once, and that of the backends of a frontend."""
    found = [route.record for route in routes() if isinstance(route.record, ListedFields)]
    return list({listed.record: listed for listed in (*found, MEMBERS)}.values())


def route_rows() -> Iterator[tuple[str, ...]]:
    for route in routes():
        query = "&".join(f"{key}=" for key, _ in route.query)
        name = route.record_name
        answer = name if route.is_text else f"{'list of ' if route.many else ''}`{name}`"
        body = f"`{route.body.rpartition(':')[2]}`" if route.body else ""
        yield f"`{route.method} {route.path}{'?' if query else ''}{query}`", body, answer, route.meaning


def record_rows() -> Iterator[tuple[str, ...]]:
    """Yield the records that are not lists, with their file."""
    named = {path for route in routes() for path in (route.record, route.body) if isinstance(path, str) and ":" in path}
    for module, _, name in sorted(path.partition(":") for path in named):
        yield f"`{name}`", f"`{module.replace('.', '/')}.py`"


def field_rows(listed: ListedFields[Any]) -> Iterator[tuple[str, ...]]:
    for field in listed.fields:
        when = (
            " (`-o wide`)"
            if field.wide
            else f" (`-o wide`, or where a row has `{field.shown_with}`)"
            if field.shown_with
            else ""
        )
        yield f"`{field.key}`" if field.key else "", field.kind, field.title + when, field.meaning


def doctor_rows() -> Iterator[tuple[str, ...]]:
    for check in every_check():
        if check.when.offline:
            yield f"`{check.name}`", check.level.value, "yes" if check.when.running else "", check.looks_at


def code_rows() -> Iterator[tuple[str, ...]]:
    used: dict[int, list[str]] = {code: [] for code in CODES}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.LbError):
            used[kind.exit_code].append(kind.__name__)
    assert used.keys() == CODES.keys()
    for code, text in CODES.items():
        yield str(code), text


FIELDS = ("key", "type", "column", "meaning")
METRIC_TITLES = ("metric", "type", "labels", "meaning")
TABLES = {
    **{each.record: lambda each=each: table(FIELDS, field_rows(each)) for each in lists()},
    "options": lambda: table(("flag", "environment", "default", "meaning"), option_rows()),
    "reasons": lambda: table(("nr", "reason", "meaning"), reason_rows()),
    "metrics": lambda: table(METRIC_TITLES, metric_rows()),
    "records": lambda: table(("record", "file"), record_rows()),
    "routes": lambda: table(("request", "body", "answer", "meaning"), route_rows()),
    "doctor": lambda: table(("check", "level", "condition", "looks at"), doctor_rows()),
    "codes": lambda: table(("code", "meaning"), code_rows()),
}


def written(text: str) -> str:
    """Return the document with every table as the code says."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main(arguments: Sequence[str]) -> int:
    """Write the tables, or with --check only compare them."""
    old = 0
    for path in (FILE, API_FILE):
        text = path.read_text()
        if arguments != ["--check"]:
            path.write_text(written(text))
        elif written(text) != text:
            print(f"docs/{path.name}: a table is not that of the code: python -m tests.docs.tables")
            old = 1
    return old


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
