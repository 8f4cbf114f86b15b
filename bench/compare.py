"""`python -m bench.compare OTHER_CHECKOUT [--rounds N] [--full]`: compares the packet programs of this checkout with another's.

Each round starts the datapath benchmarks of both checkouts, in alternating order, in separate processes: the kernel's placement of
the tables changes a row by 5 % and more, and only new tables average that out. The compared figure of a row is its ratio to the
textbook program of the same process; the other checkout must be built (`make build` there). A round takes four to five minutes;
the table is printed after each. Exit code 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench import report

HERE = Path(__file__).resolve().parents[1]
ALLOWED = 1.03  # a row that is slower needs a reason in docs/benchmarks.md
Rows = dict[tuple[str, int, int], float]
# plain words: names of rows in older checkouts
RENAMED = {"packet for nobody": "packet of no service"}


def measured(checkout: Path, *, quick: bool) -> Rows:
    """Run one checkout's datapath benchmark; return ours / textbook by case, family and flows."""
    arguments = [
        str(checkout / ".venv/bin/python"),
        "-m",
        "bench",
        "--only",
        "datapath",
        *(["--quick"] if quick else []),
    ]
    results = checkout / "bench" / "results.json"
    before = results.read_bytes() if results.exists() else None
    try:
        subprocess.run(arguments, cwd=checkout, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = json.loads(results.read_bytes())["datapath"]
    finally:
        if before is not None:
            results.write_bytes(before)
    return rows_of(rows)


def rows_of(results: Iterable[Mapping[str, Any]]) -> Rows:
    """Return ours / textbook by case (with its present name), family and flows."""
    return {
        (RENAMED.get(row["case"], row["case"]), row["family"], row["flows"]): row["ours_over_textbook"]["median"]
        for row in results
    }


def table(old: list[Rows], new: list[Rows]) -> str:
    """Return a line per row: medians over the rounds, their ratio, and whether it is allowed."""
    lines = []
    for key in old[0]:
        before, after = (statistics.median(rows[key] for rows in side) for side in (old, new))
        pairs = statistics.median(b[key] / a[key] for a, b in zip(old, new, strict=True))
        verdict = "" if pairs <= ALLOWED else "slower"
        case, family, flows = key
        lines.append([f"IPv{family}", case, f"{flows:,}", f"{before:.3f}", f"{after:.3f}", f"{pairs:.3f}", verdict])
    return report.table(["", "case", "flows", "before / textbook", "after / textbook", "after / before", ""], lines)


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="the checkout to compare with (before)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="all rows, not the quick ones")
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("the benchmark loads BPF programs: run it as root", file=sys.stderr)
        return 1
    sides: dict[Path, list[Rows]] = {options.other.resolve(): [], HERE: []}
    for number in range(options.rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for checkout in order:
            print(f"round {number + 1} of {options.rounds}: {checkout}", file=sys.stderr, flush=True)
            sides[checkout].append(measured(checkout, quick=not options.full))
        print(f"\nafter {number + 1} rounds\n{table(sides[options.other.resolve()], sides[HERE])}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
