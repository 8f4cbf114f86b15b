"""The rate at which flows end, the lines and the bar."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from lbagent.cli.drain_progress import DrainReport, EndRate

A, B = "10.0.0.1:80/TCP", "10.0.0.2:80/TCP"


def row(
    address: str, flows: int, state: str = "draining", *, at_start: int = 10, counted: bool = True
) -> dict[str, Any]:
    return {"address": address, "flows": flows, "state": state, "flows_at_start": at_start, "counted": counted}


@pytest.mark.parametrize(
    ("counts", "eta_s"),
    [
        ([], None),
        ([(0, 10)], None),
        ([(0, 10), (0.5, 5)], None),  # too short for a rate
        ([(0, 10), (10, 10)], None),
        ([(0, 10), (10, 5)], 10.0),
        ([(0, 100), (30, 70)], 70.0),
        ([(0, 10), (10, 0)], 0.0),
        ([(0, 10), (10, 5), (20, 20), (30, 10)], 10.0),  # counts that grow begin again
        ([(0, 1000), (60, 100), (120, 70)], 140.0),  # of the last minute
    ],
)
def test_eta(counts: list[tuple[float, int]], eta_s: float | None) -> None:
    rate = EndRate()
    for now, flows in counts:
        rate.add(now, flows)
    assert rate.eta_s() == eta_s


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    report = DrainReport("json")
    report.begin([A, B])
    report.show([row(A, -1, counted=False), row(B, 4)], 0.0)
    report.show([row(A, 6), row(B, 4)], 1.0)
    report.show([row(A, 6), row(B, 4)], 2.0)
    report.show([row(A, 3), row(B, 0, "drained")], 4.0)
    report.show([row(A, 3, "timed-out")], 5.0)
    report.end_bar()
    report.finish([A, B], [A])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [tuple(json.loads(line).values()) for line in captured.out.splitlines()] == [
        (A, 6, None, "draining"),
        (B, 4, None, "draining"),
        (A, 3, 3.0, "draining"),
        (B, 0, 0.0, "drained"),
        (A, 3, 0.0, "reset"),
    ]
    assert list(json.loads(captured.out.splitlines()[0])) == ["address", "flows", "eta_s", "state"]


def test_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    report = DrainReport("text")
    report.begin([A, B])
    report.show([row(A, 6), row(B, 4)], 1.0)
    report.show([row(A, 6), row(B, 4)], 2.0)
    report.show([row(A, 5), row(B, 0, "drained")], 6.0)
    report.show([row(A, 0, "drained")], 7.0)
    report.finish([A, B], [])
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        f"{A}, {B} in maintenance; waiting for the next count of flows",
        f"flows are left: {A} 6, {B} 4",
        f"flows are left: {A} 5; about 5 s",
    ]
    assert captured.out == f"{A} drained\n{B} drained\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", Terminal())
    report = DrainReport("text")
    report.show([row(A, 10), row(B, 10)], 1.0)
    report.show([row(A, 5), row(B, 0, "drained")], 11.0)
    report.show([row(A, 0, "drained")], 12.0)
    report.end_bar()
    shown = sys.stderr.getvalue().split("\r\x1b[K")  # type: ignore[attr-defined]
    assert shown == [
        "",
        "[........................] 20 of 20 flows are left",
        "[##################......] 5 of 20 flows are left; about 3 s",
        "[########################] 0 of 20 flows are left\n",
    ]


def test_no_bar_on_a_terminal_without_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", Terminal())
    report = DrainReport("text")
    report.show([row(A, 10)], 1.0)
    report.end_bar()
    assert sys.stderr.getvalue() == f"flows are left: {A} 10\n"  # type: ignore[attr-defined]
