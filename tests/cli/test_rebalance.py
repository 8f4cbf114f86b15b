"""`backend rebalance`: which rows of a Service belong together, and what is printed."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from lbagent.cli.rebalance import RebalanceReport, ports_of
from lbagent.errors import NotFound, Refused

A, B = "10.0.0.1:80/TCP", "10.0.0.2:80/TCP"


def member(address: str, weight: int = 100, *, selectable: bool = True) -> dict[str, Any]:
    return {"address": address, "weight": weight, "selectable": selectable}


def frontend(ident: int, address: str, *backends: dict[str, Any], **more: Any) -> dict[str, Any]:
    row = {"id": ident, "frontend": address, "port_name": "http", "algorithm": "random", "affinity_timeout_s": 0}
    return row | {"backends": list(backends)} | more


def test_frontends_of_one_port_are_counted_together() -> None:
    rows = [
        frontend(1, "10.96.0.1:80/TCP", member(A), member(B), member("10.0.0.3:80/TCP", selectable=False)),
        frontend(2, "192.0.2.1:80/TCP", member(A), member(B)),
        frontend(3, "[fd00::1]:80/TCP", member("[fd01::1]:80/TCP")),
        frontend(4, "10.96.0.1:53/UDP", member("10.0.0.1:53/UDP")),
    ]
    four, six = ports_of(rows, "shop/web", 0.1)
    assert (four.services, four.weights) == ({1, 2}, {A: 1, B: 1})
    assert six.services == {3}


def test_weights_count_where_the_algorithm_has_them() -> None:
    rows = [frontend(1, "10.96.0.1:80/TCP", member(A, 100), member(B, 300), algorithm="maglev")]
    assert ports_of(rows, "shop/web", 0.1)[0].weights == {A: 100, B: 300}


def test_what_is_refused() -> None:
    with pytest.raises(NotFound, match="shop/web"):
        ports_of([], "shop/web", 0.1)
    with pytest.raises(Refused, match="UDP"):
        ports_of([frontend(1, "10.96.0.1:53/UDP", member("10.0.0.1:53/UDP"))], "shop/web", 0.1)
    with pytest.raises(Refused, match="sessionAffinity"):
        ports_of([frontend(1, "10.96.0.1:80/TCP", member(A), affinity_timeout_s=60)], "shop/web", 0.1)


def shares(flows: int, to_reset: int) -> list[dict[str, Any]]:
    rest = {"share": 10.0, "limit": 11}
    return [
        {"address": A, "flows": flows, "to_reset": to_reset, **rest},
        {"address": B, "flows": 20 - flows, "to_reset": 0, **rest},
    ]


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    report = RebalanceReport("json", 9)
    report.show(shares(15, 4), {A: 5})
    report.show(shares(15, 4), {A: 5})
    report.show(shares(11, 0), {A: 9})
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in out if line["address"] == A] == [
        {"address": A, "flows": 15, "share": 10.0, "reset": 5, "state": "over"},
        {"address": A, "flows": 11, "share": 10.0, "reset": 9, "state": "within"},
    ]


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report = RebalanceReport("text", 9)
    report.show(shares(15, 4), {A: 5})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == f"{A}: 15 flows, share 10, 5 reset, over"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    report = RebalanceReport("text", 8)
    report.show(shares(15, 4), {A: 4})
    report.show(shares(11, 0), {A: 8})
    report.end_bar()
    shown = screen.getvalue()
    assert f"[{'#' * 12}{'.' * 12}] 4 flows too many, 4 reset" in shown
    assert f"[{'#' * 24}] 0 flows too many, 8 reset" in shown
    assert shown.endswith("\n")
