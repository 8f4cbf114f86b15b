"""`lbagent renderers`: the list, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lbagent.cli.main import run
from lbagent.kernel import features
from lbagent.render.renderer_types import Difference
from tests.api.serving import Agent
from tests.cli.conftest import Run


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


def test_verify_asks_an_agent_whose_data_plane_has_no_maps(lb: Run, agent: Agent, tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert lb("verify", "--bpffs", missing) == (0, "", "")
    agent.name, agent.differences = "nftables", [Difference("missing", "its chain", "shop/web", "10.96.0.1:80/TCP")]
    assert lb("verify", "--bpffs", missing) == (1, "nftables: shop/web 10.96.0.1:80/TCP: missing: its chain\n", "")
    agent.bpffs = "/elsewhere"
    assert lb("verify", "--bpffs", missing).code == 3


def test_verify_repairs(lb: Run, agent: Agent) -> None:
    """What a second look does not find any more is repaired; else the exit code is 1."""
    agent.name, agent.differences = "nftables", [Difference("stale", "chain x")]
    row = {
        "renderer": "nftables",
        "service": None,
        "frontend": None,
        "kind": "stale",
        "detail": "chain x",
        "repaired": False,
    }
    found = lb("verify", "--renderer", "nftables", "-o", "json")
    assert (found.code, json.loads(found.out)) == (1, [row | {"difference": "stale: chain x"}])
    assert lb("verify", "--repair") == (0, "nftables: stale: chain x (repaired)\n", "")
    assert lb("verify", "--repair") == (0, "", "")


def test_verify_of_a_data_plane_that_is_not_there(lb: Run, agent: Agent) -> None:
    agent.name = "nftables"
    done = lb("verify", "--renderer", "record")
    assert (done.code, done.err) == (3, "error: renderer 'record' is none of this agent's: it has nftables\n")
    done = lb("verify", "--renderer", "noname")
    assert (done.code, done.out) == (3, "")
    assert "there are bpf, nftables, record, none" in done.err


def test_verify_that_needs_an_agent(lb: Run, no_agent: None) -> None:
    assert lb("verify", "--renderer", "nftables").code == 5
    assert lb("verify", "--repair").code == 5


def test_status_without_an_agent_shows_what_serves(lb: Run, no_agent: None, tmp_path: Path) -> None:
    done = lb("status", "--bpffs", str(tmp_path / "none"))
    assert done.code == 5
    assert done.out == f"datapath   no maps can be read at {tmp_path / 'none'}\n"
