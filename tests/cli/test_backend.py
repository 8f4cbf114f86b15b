"""`backend list`, `set-state`, `drain`."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.api.types import Status
from tests.api.serving import Agent
from tests.cli.conftest import Run


def test_list(lb: Run, agent: Agent) -> None:
    lines = lb("backend", "list").out.splitlines()
    assert lines[0].split() == ["ID", "ADDRESS", "STATE", "WEIGHT", "FLOWS", "NODE", "LOCAL", "SERVICES"]
    assert lines[1].split() == ["1", "10.0.0.9:8080/TCP", "active", "100", "5", "n1", "yes", "shop/web"]
    assert lines[4].split() == ["4", "10.0.0.53:53/UDP", "maintenance", "0", "0", "-", "no", "kube-system/dns"]


def test_list_forms(lb: Run, agent: Agent) -> None:
    rows = json.loads(lb("backend", "list", "-o", "json").out)
    assert rows[0] == {
        "id": 1,
        "address": "10.0.0.9:8080/TCP",
        "state": "active",
        "weight": 100,
        "node": "n1",
        "zone": "a",
        "local": True,
        "flows": 5,
        "services": ["shop/web"],
    }
    assert lb("backend", "list", "-o", "name").out.splitlines()[1] == "10.0.0.10:8080/TCP"
    sorted_rows = json.loads(lb("backend", "list", "-o", "json", "--sort-by", "state").out)
    assert [row["id"] for row in sorted_rows] == [1, 2, 4, 3]


def test_flows_not_counted_yet(lb: Run, agent: Agent) -> None:
    agent.flows = None
    assert lb("backend", "list").out.splitlines()[1].split()[4] == "-"


@pytest.mark.parametrize(
    "words",
    [
        ["10.0.0.9:8080/TCP", "maintenance"],
        ["maintenance", "10.0.0.9:8080"],
        ["10.0.0.9:8080", "MAINTENANCE"],
        ["maintenance", "10.0.0.9:8080", "10.0.0.10:8080/TCP"],
    ],
)
def test_set_state_both_orders(lb: Run, agent: Agent, words: list[str]) -> None:
    """ADDRESS STATE and STATE ADDRESS...; the answer is what holds now."""
    done = lb("backend", "set-state", *words, "-o", "json")
    assert done.code == 0
    rows = json.loads(done.out)
    assert {row["state"] for row in rows} == {"maintenance"}
    assert len(rows) == len(words) - 1
    states = {backend["address"]: backend["state"] for backend in json.loads(lb("backend", "list", "-o", "json").out)}
    assert states["10.0.0.9:8080/TCP"] == "maintenance"


@pytest.mark.parametrize(
    "words", [["pod/shop/web-0", "maintenance"], ["maintenance", "pod/shop/web-0", "10.0.0.53:53"]]
)
def test_set_state_of_a_pod(lb: Run, agent: Agent, words: list[str]) -> None:
    """Every backend of the Pod, in both orders of the words, beside addresses."""
    done = lb("backend", "set-state", *words, "-o", "name")
    assert done.code == 0
    assert done.out.splitlines() == ["10.0.0.9:8080/TCP", "10.0.0.10:8080/TCP", "10.0.0.53:53/UDP"][: len(words)]
    assert agent.said_pods == ["shop/web-0"]


def test_set_state_of_an_unknown_pod(lb: Run, agent: Agent) -> None:
    done = lb("backend", "set-state", "maintenance", "10.0.0.9:8080", "pod/shop/gone")
    assert done.code == 3
    assert "no service has a backend of the Pod shop/gone; nothing was changed" in done.err
    assert agent.current.generation == 3


@pytest.mark.parametrize("word", ["pod/web-0", "pod/a/b/c", "pod//x", "pod/"])
def test_references_that_are_none(lb: Run, agent: Agent, word: str) -> None:
    done = lb("backend", "set-state", "maintenance", word)
    assert done.code == 2
    assert f"{word!r} is not a reference of the form pod/NAMESPACE/NAME; nothing was changed" in done.err


def test_drain_of_a_pod(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps = iter([7, 9])
    agent.flows = {}
    monkeypatch.setattr(agent, "status", lambda: _swept(agent, next(sweeps)))
    done = lb("backend", "drain", "pod/shop/web-0", "--timeout", "30s")
    assert (done.code, done.out) == (0, "10.0.0.9:8080/TCP drained\n10.0.0.10:8080/TCP drained\n")


def test_refused_transition(lb: Run, agent: Agent) -> None:
    """Exit code 4, both states named, nothing changed."""
    done = lb("backend", "set-state", "10.0.0.11:8080", "active")
    assert done.code == 4
    assert "terminating" in done.err
    assert "active" in done.err
    assert agent.current.generation == 3


def test_the_operator_does_not_terminate(lb: Run, agent: Agent) -> None:
    assert lb("backend", "set-state", "10.0.0.9:8080", "terminating").code == 4


def test_unknown_backend(lb: Run, agent: Agent) -> None:
    done = lb("backend", "set-state", "10.9.9.9:8080", "maintenance")
    assert done.code == 3
    assert "10.9.9.9:8080/TCP" in done.err


def _swept(agent: Agent, sweeps: int) -> Status:
    return replace(Agent.status(agent), sweeps=sweeps)


def test_drain_waits_for_a_sweep_of_its_own(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flows of the sweep that was running do not count; the second one after it does."""
    sweeps = iter([7, 7, 8, 9, 9, 9])
    flows: list[dict[int, int]] = [{1: 5}, {1: 0}, {1: 2}, {1: 0}]

    def status() -> Any:
        sweep = next(sweeps)
        agent.flows = flows.pop(0) if flows else {}
        return _swept(agent, sweep)

    monkeypatch.setattr("lbagent.cli.verbs.backend.POLL_S", 0.001)
    monkeypatch.setattr(agent, "status", status)
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "30s")
    assert (done.code, done.out) == (0, "10.0.0.9:8080/TCP drained\n")
    assert agent.current.generation == 4


def test_drain_times_out(lb: Run, agent: Agent) -> None:
    """Exit code 6 with what is left; the backend stays in maintenance."""
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "50ms")
    assert done.code == 6
    assert "10.0.0.9:8080/TCP 5" in done.err
    assert json.loads(lb("backend", "list", "-o", "json").out)[0]["state"] == "maintenance"


def test_drain_of_an_agent_that_does_not_answer(lb: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts and says nothing, as a stopped process does; the wait asked for counts, not a request's own limit."""
    monkeypatch.setattr("lbagent.cli.verbs.backend.ANSWER_S", 0.01)
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "100ms", "--socket", path)
    assert (done.code, done.out) == (6, "")
    assert "did not answer within 0.1 s" in done.err


def test_set_state_from_many_at_once(agent: Agent, lb: Run) -> None:
    """Concurrent writers each get an answer of their own."""
    from lbagent.api.client import AgentClient

    got: list[str] = []

    def write(address: str) -> None:
        got.extend(row["address"] for row in AgentClient().set_state([address], "maintenance"))

    threads = [threading.Thread(target=write, args=(address,)) for address in ("10.0.0.9:8080", "10.0.0.10:8080")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(got) == ["10.0.0.10:8080/TCP", "10.0.0.9:8080/TCP"]
