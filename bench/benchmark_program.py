"""The common parts of `python -m bench` and `python -m bench.NAME`: arguments, results.json, tables, missed targets."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bench import report


class Benchmark(NamedTuple):
    """A benchmark with rows of its own. `name`: its key in results.json; `begin`: the mark of its tables in docs/benchmarks.md."""

    name: str
    about: str
    rows: Sequence[str]
    begin: str
    text: Callable[[dict[str, Any]], str]


def say(text: str) -> None:
    """Report progress on stderr, apart from the tables."""
    print(text, file=sys.stderr, flush=True)


def parser(benchmark: Benchmark, times: str) -> argparse.ArgumentParser:
    """Return a parser of the common arguments; `times` is the help text of --times."""
    made = argparse.ArgumentParser(prog=f"python -m bench.{benchmark.name}", description=benchmark.about)
    made.add_argument("--only", choices=benchmark.rows, action="append", help="measure only this row (repeatable)")
    made.add_argument("--times", type=int, default=20, help=times)
    made.add_argument("--document", action="store_true", help="put the tables into docs/benchmarks.md")
    return made


def is_root(target: str) -> bool:
    """Return whether this is root; else print what to do."""
    if os.geteuid() == 0:
        return True
    say(f"the benchmark loads BPF programs and creates network namespaces: run it as root (sudo make {target})")
    return False


def run(benchmark: Benchmark, measure: Callable[[], Mapping[str, Any]], *, document: bool, quick: bool = False) -> int:
    """Measure and report; return the exit code."""
    if not is_root(f"bench-{benchmark.name}"):
        return 1
    began = time.monotonic()
    result = {"machine": report.machine(), "quick": quick, **measure()}
    report.save(report.load() | {benchmark.name: result})
    show({benchmark.begin: benchmark.text(result)}, began, document=document)
    return 0


def show(bodies: Mapping[str, str], began: float, *, document: bool) -> None:
    """Print tables, by their marks in docs/benchmarks.md, and with --document write them there; then list rows that miss a target."""
    for begin, body in bodies.items():
        print(body)
        if document:
            report.into_document(body, begin)
    missed = report.missed("\n".join(bodies.values()))
    say(f"\n{time.monotonic() - began:.0f} s; {report.RESULTS} written; {len(missed)} rows miss a target")
    for line in missed:
        say("  " + " ".join(line.split()))
