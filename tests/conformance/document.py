"""The table of docs/conformance.md: one row for each way of running the suite, of its last run."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path

from tests.conformance.results import Results
from tests.lab.netns import LabError
from tests.lab.topology import ROOT

PAGE = ROOT / "docs" / "conformance.md"
BEGIN, END = "<!-- table: conformance -->\n", "<!-- end -->\n"
HEAD = "| agents | passed | date | commit | nodes, tests at a time | failed |\n| --- | --- | --- | --- | --- | --- |\n"


def commit() -> str:
    """Return the tested commit; with `+` if files were changed since."""
    changed = subprocess.run(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"], capture_output=True, text=True)
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def row(agents: str, results: Results, nodes: int, procs: int, at: str) -> str:
    """Return the row of a run; `at` is its commit."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    failed = "<br>".join(f"{title}{'' if title in results.failed else ' (did not run)'}" for title in bad(results))
    count = f"{len(results.passed)} of {len(results.expected)}"
    return f"| {agents} | {count} | {today} | {at} | {nodes}, {procs} | {failed or '-'} |\n"


def bad(results: Results) -> list[str]:
    """Return the tests that failed or did not run."""
    return sorted({*results.failed, *results.missing})


def with_row(text: str, line: str) -> str:
    """Return the page with this row in place of the one for the same agents, else at the table's end."""
    before, found, rest = text.partition(BEGIN)
    table, ended, after = rest.partition(END)
    if not found or not ended:
        raise LabError(f"{PAGE.name} has no table between {BEGIN.strip()} and {END.strip()}")
    rows = {each.split("|")[1]: each for each in table.splitlines(keepends=True)[2:]}
    rows[line.split("|")[1]] = line
    return before + BEGIN + HEAD + "".join(rows.values()) + END + after


def write(line: str, page: Path = PAGE) -> None:
    """Write a row into the page."""
    page.write_text(with_row(page.read_text(), line))
