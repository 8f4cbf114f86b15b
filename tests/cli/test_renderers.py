"""`lbagent renderers`: the list, for people and for programs."""

from __future__ import annotations

import json

import pytest

from lbagent.cli.main import run
from lbagent.kernel import features


@pytest.fixture(autouse=True)
def _no_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "can_load", lambda: 1)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["renderers", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found] == ["bpf", "nftables", "record", "none"]
    assert {tuple(row) for row in found} == {("name", "from", "available", "reason", "capabilities")}
    assert found[3] == {"name": "none", "from": "lbagent", "available": True, "reason": "", "capabilities": []}


def test_table_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["renderers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "AVAILABLE", "REASON"]
    assert lines[4].split() == ["none", "yes", "-"]
    assert run(["renderers", "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["bpf", "nftables", "record", "none"]
