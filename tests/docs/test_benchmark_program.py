"""The programs of the benchmarks: common arguments, and the place of their figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import benchmark_program, report
from bench.benchmark_program import Benchmark

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- mine -->"
MINE = Benchmark("mine", "about", ("a", "b"), MARK, lambda result: f"| {result['figure']} | MISSED  by 2 |")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "results.json").write_text('{"other": 1, "mine": {"figure": 6}}')
    (tmp_path / "document").write_text(f"before\n{MARK}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "document")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


@pytest.mark.parametrize("document", [False, True])
def test_figures_tables_and_what_misses_a_target(
    files: Path, capsys: pytest.CaptureFixture[str], document: bool
) -> None:
    assert benchmark_program.run(MINE, lambda: {"figure": 7}, document=document, quick=True) == 0
    results = json.loads((files / "results.json").read_text())
    assert results["other"] == 1
    assert (results["mine"]["figure"], results["mine"]["quick"]) == (7, True)
    assert results["mine"]["machine"] == report.machine()
    printed = capsys.readouterr()
    assert printed.out == "| 7 | MISSED  by 2 |\n"
    assert "1 rows miss a target\n  | 7 | MISSED by 2 |\n" in printed.err
    body = "| 7 | MISSED  by 2 |" if document else "old"
    assert (files / "document").read_text() == f"before\n{MARK}\n{body}\n{report.END}\nafter\n"


def test_without_root_nothing_is_measured(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1)
    assert benchmark_program.run(MINE, lambda: pytest.fail("measured"), document=True) == 1
    assert "sudo make bench-mine" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("name", ["apilb", "cloud"])
def test_what_each_takes(name: str) -> None:
    argv = [sys.executable, "-m", f"bench.{name}", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    assert f"usage: python -m bench.{name} " in done.stdout
    for option in ("--only", "--times", "--document"):
        assert option in done.stdout
