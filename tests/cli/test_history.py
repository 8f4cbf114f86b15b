"""`lbagent history`: the table, the JSON, how many."""

from __future__ import annotations

import json

from msgspec.structs import replace

from tests.api.serving import Agent
from tests.cli.conftest import Run
from tests.sync.generations import generation

COLUMNS = "GENERATION TIME CAUSE ADDED CHANGED REMOVED WRITES MS FRONTENDS"


def test_table(lb: Run, agent: Agent) -> None:
    agent.history = [generation(2, "set-state 10.0.0.1:8080/TCP maintenance"), generation(1, "start of the agent")]
    lines = lb("history").out.splitlines()
    assert lines[0].split() == COLUMNS.split()
    assert lines[1].split()[:2] == ["2", "2026-11-27T04:28:45.123Z"]
    assert "set-state 10.0.0.1:8080/TCP maintenance" in lines[1], "a cause is never cut"
    assert lines[2].split()[-6:] == ["0", "1", "0", "3", "0.25", "10.96.0.10:80/TCP"]


def test_many_frontends_are_one_cell(lb: Run, agent: Agent) -> None:
    agent.history = [replace(generation(1), added=3, frontends=["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"])]
    assert lb("history").out.splitlines()[1].endswith(" 10.0.0.1:80/TCP +3")
    agent.history = [replace(generation(1), changed=0, frontends=[])]
    assert lb("history").out.splitlines()[1].endswith(" -")


def test_json(lb: Run, agent: Agent) -> None:
    agent.history = [generation(number) for number in range(30, 0, -1)]
    assert len(json.loads(lb("history", "-o", "json").out)) == 20
    assert len(json.loads(lb("history", "-n", "0", "-o", "json").out)) == 30
    (row,) = json.loads(lb("history", "-n", "1", "-o", "json").out)
    assert row == {
        "generation": 30,
        "time": "2026-11-27T04:28:45.123Z",
        "cause": "Service shop/web",
        "added": 0,
        "changed": 1,
        "removed": 0,
        "writes": 3,
        "duration_ms": 0.25,
        "frontends": ["10.96.0.10:80/TCP"],
    }


def test_none_yet(lb: Run, agent: Agent) -> None:
    assert lb("history", "-o", "json") == (0, "[]\n", "")
    assert lb("history").code == 0


def test_failures(lb: Run, agent: Agent) -> None:
    assert lb("history", "-n", "-1").code == 2
    assert lb("history", "-n", "x").code == 2


def test_without_an_agent(lb: Run, no_agent: None) -> None:
    assert lb("history").code == 5
