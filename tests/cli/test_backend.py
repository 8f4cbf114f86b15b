"""`backend list`, `set-state`, `drain`."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lbagent.api.agent_status import Status
from lbagent.api.client import AgentClient
from lbagent.api.operator_states import SetBy
from lbagent.apilb.native.server_check import ServerCheck
from lbagent.errors import AgentUnreachable, ConfigError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.handshakes import Handshakes
from lbagent.sources.operator import KeptDrain
from lbagent.targets.data_plane import EgressPath
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


def test_list_says_which_way_packets_take(lb: Run, agent: Agent) -> None:
    """With -o wide, and by itself as soon as XDP programs leave the packets of one backend to tc."""
    agent.ways = {1: EgressPath("stack"), 2: EgressPath("xdp", "eth0"), 3: EgressPath("xdp", "eth0")}
    assert "WAY" not in lb("backend", "list").out
    header, *lines = (line.split() for line in lb("backend", "list", "-o", "wide").out.splitlines())
    at = header.index("WAY")
    assert header[at + 1] == "DEVICE"
    assert [line[at : at + 2] for line in lines] == [["stack", "-"], ["xdp", "eth0"], ["xdp", "eth0"], ["-", "-"]]
    agent.ways[3] = EgressPath("tc", "br0", "a bridge takes no frames from XDP")
    header, *lines = (line.split() for line in lb("backend", "list").out.splitlines())
    assert "DEVICE" not in header
    assert [line[header.index("WAY")] for line in lines] == ["stack", "xdp", "tc", "-"]
    rows = json.loads(lb("backend", "list", "-o", "json").out)
    assert [rows[0].get("way"), rows[0].get("device"), rows[3].get("way")] == ["stack", None, None]
    assert [rows[2][key] for key in ("way", "device", "way_reason")] == list(agent.ways[3])


def test_flows_not_counted_yet(lb: Run, agent: Agent) -> None:
    agent.flows = None
    assert lb("backend", "list").out.splitlines()[1].split()[4] == "-"


def test_handshakes(lb: Run, agent: Agent) -> None:
    """Columns of -o wide, and `tcp` in the row, of a backend of which one was timed."""
    agent.timed = {2: Handshakes((0, 3, *[0] * 13, 1, 0), sum_us=5, refused=2, lost=1, again=4, failing=3)}
    header, *lines = (line.split() for line in lb("backend", "list", "-o", "wide").out.splitlines())
    at = header.index("P50")
    assert header[at : at + 4] == ["P50", "P99", "REFUSED", "TIMEOUT"]
    assert [line[at : at + 4] for line in lines[:2]] == [["-"] * 4, ["107us", "2.06s", "2", "1"]]
    assert "P50" not in lb("backend", "list").out
    rows = json.loads(lb("backend", "list", "-o", "json").out)
    assert "tcp" not in rows[0]
    assert rows[1]["tcp"] == {"handshake_p50_us": 107, "handshake_p99_us": 2055209, "refused": 2, "timeout": 1}


def test_get(lb: Run, agent: Agent) -> None:
    agent.timed = {1: Handshakes((0, 4, 0, 40, *[0] * 13), sum_us=5, refused=2, lost=1, again=4, failing=3)}
    text = lb("backend", "get", "10.0.0.9:8080").out
    lines = text.splitlines()
    assert lines[0] == "10.0.0.9:8080/TCP  active"
    assert "  flows    5" in lines
    assert "  traffic  7 packets, 700 bytes" in lines
    assert any(line.split() == ["10.96.0.10:80/TCP", "shop/web"] for line in lines)
    assert "44 done, p50 371us, p99 509us, 2 refused, 1 without an answer, 4 SYNs repeated" in text
    assert "the last 3 were refused or not answered" in text
    bars = [line.split() for line in lines if "<=" in line]
    assert bars == [["<=", "128us", "####", "4"], ["<=", "256us", "0"], ["<=", "512us", "#" * 40, "40"]]
    row = json.loads(lb("backend", "get", "10.0.0.9:8080/TCP", "-o", "json").out)
    assert (row["address"], row["packets"], row["tcp"]["timeout"]) == ("10.0.0.9:8080/TCP", 7, 1)
    assert lb("backend", "get", "10.0.0.9", "-o", "name").out == "10.0.0.9:8080/TCP\n"
    other = lb("backend", "get", "10.0.0.10:8080/TCP")
    assert "none was timed" in other.out


def test_get_shows_the_pod_and_its_health_checks(lb: Run, agent: Agent) -> None:
    agent.checks["10.0.0.9:8080/TCP"] = [
        ServerCheck("p/lb", "cp1:8080", "https", 2.0, False, 1769860800.0, "connection refused", 3, {"refused": 7, "ok": 41}),
        ServerCheck("p/new", "10.0.0.9:8080", "tcp", 0.5, True, 0.0, "not checked yet", 0, {}),
    ]  # fmt: skip
    lines = lb("backend", "get", "10.0.0.9:8080").out.splitlines()
    assert "  pod      shop/web-0" in lines
    assert lines[lines.index("  health checks") + 1 :] == [
        "    p/lb  https every 2 s  down since 2026-01-31T12:00:00Z  connection refused",
        "      41 ok, 7 refused; state changes: 3",
        "    p/new  tcp every 0.5 s  up  not checked yet",
        "      none has ended; state changes: 0",
    ]
    row = json.loads(lb("backend", "get", "10.0.0.9:8080", "-o", "json").out)
    assert (row["pod"], row["checks"][0]["results"]) == ("shop/web-0", {"refused": 7, "ok": 41})
    assert [each["up"] for each in row["checks"]] == [False, True]
    other = lb("backend", "get", "10.1.0.1:53/UDP")
    assert other.code == 3 or "  pod " not in other.out
    agent.pods.clear()
    agent.checks.clear()
    text = lb("backend", "get", "10.0.0.9:8080").out
    assert "health checks" not in text
    assert "  pod " not in text


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("10.9.9.9:80", 3, "no backend 10.9.9.9:80 is served here"),
        ("10.9.9.9", 3, "10.9.9.9"),
        ("10.0.0.9:8080/UDP", 3, "is served here"),
        ("10.0.0.300:80", 2, "10.0.0.300"),
        ("pod/shop/web-0", 2, "no ADDRESS:PORT"),
        ("word", 2, "word"),
    ],
)
def test_get_of_what_is_not_there(lb: Run, agent: Agent, address: str, code: int, words: str) -> None:
    done = lb("backend", "get", address)
    assert (done.code, words in done.err, done.out) == (code, True, ""), done.err


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
    """ADDRESS STATE and STATE ADDRESS...; the answer is the present state."""
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
    """Every backend of the Pod, in both orders of the words, together with addresses."""
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


def test_an_address_without_a_protocol_means_every_protocol(lb: Run, agent: Agent) -> None:
    """It changed only TCP, without a message."""
    dns = agent.current.services[4]
    tcp = Backend(5, L3n4Addr.parse("10.0.0.53:53/TCP"))
    udp = replace(dns.slotless[0], state=BackendState.ACTIVE)
    agent.advance((*agent.current.services[:4], replace(dns, selectable=(udp, tcp), slotless=())))
    done = lb("backend", "set-state", "maintenance", "10.0.0.53:53", "--yes", "-o", "name")
    assert (done.code, done.out.splitlines()) == (0, ["10.0.0.53:53/UDP", "10.0.0.53:53/TCP"])
    assert {row["state"] for row in _rows(lb) if row["address"].startswith("10.0.0.53")} == {"maintenance"}
    lb("backend", "set-state", "active", "10.0.0.53:53/UDP")
    states = {row["address"]: row["state"] for row in _rows(lb)}
    assert (states["10.0.0.53:53/UDP"], states["10.0.0.53:53/TCP"]) == ("active", "maintenance")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["10.0.0.9"], ["10.0.0.9:8080/TCP"]),
        (["10.0.0.9", "10.0.0.53"], ["10.0.0.9:8080/TCP", "10.0.0.53:53/UDP"]),
        (["--node", "n1"], ["10.0.0.9:8080/TCP"]),
        (["--service", "shop/web", "--node", "n1"], ["10.0.0.9:8080/TCP"]),
        (["--service", "shop/web"], ["10.0.0.9:8080/TCP", "10.0.0.10:8080/TCP", "10.0.0.11:8080/TCP"]),
    ],
)
def test_set_state_by_address_node_and_service(lb: Run, agent: Agent, words: list[str], names: list[str]) -> None:
    """A terminating backend stays so, with a message, if it was not named itself."""
    done = lb("backend", "set-state", "maintenance", *words, "-o", "json")
    assert done.code == 0, done.err
    assert [row["address"] for row in json.loads(done.out)] == names
    assert {row["state"] for row in json.loads(done.out)} <= {"maintenance", "terminating"}
    assert done.err == ("10.0.0.11:8080/TCP stays terminating\n" if len(names) == 3 else "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["10.9.9.9"], "no service has a backend with the address 10.9.9.9"),
        (["--node", "n7"], "no service has a backend on node n7"),
        (["--service", "shop/none"], "no service shop/none is served here"),
        (["--service", "kube-system/dns", "--node", "n1"], "service kube-system/dns has no backend on node n1"),
    ],
)
def test_set_state_of_nothing(lb: Run, agent: Agent, words: list[str], text: str) -> None:
    for verb in (["set-state", "maintenance"], ["drain"], ["clear-state"]):
        done = lb("backend", *verb, *words)
        assert done.code == 3
        assert f"{text}; nothing was changed" in done.err


@pytest.mark.parametrize("words", [["10.0.0.9", "--node", "n1"], []])
def test_backends_are_named_once(lb: Run, agent: Agent, words: list[str]) -> None:
    """By words, or by --node and --service."""
    for verb in (["set-state", "maintenance"], ["drain"], ["clear-state"]):
        done = lb("backend", *verb, *words)
        assert done.code == 2
        assert "--node or --service" in done.err


@pytest.mark.parametrize(
    "verb", [["set-state", "maintenance"], ["set-state", "quarantined"], ["drain", "--timeout", "9s"]]
)
def test_the_last_backend_of_a_service_is_not_taken_in_passing(
    lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    """Without a terminal: exit code 4, the Service named, nothing changed. With --yes it is done."""
    web = agent.current.services[1]
    agent.advance((replace(web, selectable=web.selectable[:1], unselectable=()), *agent.current.services[2:]))
    generation = agent.current.generation
    done = lb("backend", *verb, "10.0.0.9:8080")
    assert (done.code, done.out) == (4, "")
    assert "shop/web:http" in done.err
    assert "nothing was changed; give --yes" in done.err
    assert agent.current.generation == generation
    agent.flows = {}
    sweeps = iter(range(0, 100, 2))
    monkeypatch.setattr(agent, "status", lambda: _swept(agent, next(sweeps)))
    assert lb("backend", *verb, "10.0.0.9:8080", "--yes").code == 0
    assert agent.current.generation == generation + 1


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 4), ("", 4)])
def test_the_last_backend_of_a_service_asks(
    lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    web = agent.current.services[1]
    agent.advance((replace(web, selectable=web.selectable[:1], unselectable=()),))
    monkeypatch.setattr("sys.stdin", _Terminal(f"{answer}\n"))
    done = lb("backend", "set-state", "maintenance", "10.0.0.9:8080", "-o", "name")
    assert done.code == code
    assert "shop/web:http" in done.err
    assert agent.current.backends[L3n4Addr.parse("10.0.0.9:8080")].state.text == ("active" if code else "maintenance")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_active_never_asks(lb: Run, agent: Agent) -> None:
    assert lb("backend", "set-state", "active", "10.0.0.53:53").code == 0


def test_who_set_a_state_and_since_when(lb: Run, agent: Agent) -> None:
    """In the table where a state was set, in JSON as set_by and set_at, always with -o wide."""
    agent.set_by = {L3n4Addr.parse("10.0.0.53:53/UDP"): SetBy(BackendState.MAINTENANCE, "operator", 1795294126.0)}
    lines = lb("backend", "list").out.splitlines()
    assert lines[0].split()[-2:] == ["SET-BY", "SINCE"]
    assert lines[4].split()[-2:] == ["operator", "2026-11-21T20:48:46Z"]
    assert lines[3].split()[-2:] == ["endpoint", "-"]
    assert lines[1].split()[-2:] == ["-", "-"]
    rows = _rows(lb)
    assert (rows[3]["set_by"], rows[3]["set_at"]) == ("operator", 1795294126.0)
    assert "set_by" not in rows[0]
    agent.set_by = {}
    assert "SET-BY" not in lb("backend", "list").out
    assert lb("backend", "list", "-o", "wide").out.splitlines()[4].split()[-2:] == ["weight", "-"]


def test_a_state_that_does_not_act_is_nobodys(lb: Run, agent: Agent) -> None:
    """The Pod terminates, regardless of the operator's state."""
    agent.set_by = {L3n4Addr.parse("10.0.0.11:8080"): SetBy(BackendState.MAINTENANCE, "operator", 1.0)}
    assert "set_by" not in _rows(lb)[2]


def test_clear_state(lb: Run, agent: Agent) -> None:
    """Rows of the cleared backends; if no state was set, a sentence and exit code 0."""
    agent.set_by = {
        L3n4Addr.parse(text): SetBy(BackendState.ACTIVE, "operator") for text in ("10.0.0.9:8080", "10.5.5.5:80")
    }
    done = lb("backend", "clear-state", "10.0.0.9", "-o", "name")
    assert (done.code, done.out, done.err) == (0, "10.0.0.9:8080/TCP\n", "")
    done = lb("backend", "clear-state", "10.0.0.9:8080")
    assert done.code == 0
    assert "no state was set" in done.err
    done = lb("backend", "clear-state", "10.5.5.5:80", "-o", "name")
    assert (done.code, done.out, done.err) == (0, "", "10.5.5.5:80/TCP cleared; no service has it now\n")
    assert lb("backend", "clear-state", "10.5.5.5:80").code == 3


def test_old_counts_say_their_age(lb: Run, agent: Agent) -> None:
    assert lb("backend", "list").err == ""
    agent.flows_age_s = 12.3
    assert lb("backend", "list").err == "flows were counted 12 s ago\n"
    assert lb("backend", "list", "-o", "json").err == ""
    assert _rows(lb)[0]["flows_age_s"] == 12.3


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["--service", "shop/web"], [1, 2, 3]),
        (["--service", "web", "-n", "shop"], [1, 2, 3]),
        (["-n", "kube-system"], [4]),
        (["--node", "n2"], [2, 3]),
        (["--state", "terminating"], [3]),
        (["--node", "n2", "--state", "active"], [2]),
        (["--node", "n1", "-n", "kube-system"], []),
    ],
)
def test_list_filters(lb: Run, agent: Agent, words: list[str], ids: list[int]) -> None:
    assert [row["id"] for row in json.loads(lb("backend", "list", "-o", "json", *words).out)] == ids


def test_a_filter_that_lets_nothing_through_says_so(lb: Run, agent: Agent) -> None:
    done = lb("backend", "list", "-n", "nowhere", "--state", "active")
    assert done.code == 0
    assert done.err == "no backend with namespace nowhere, state active is served here\n"


def _rows(lb: Run) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(lb("backend", "list", "-o", "json").out)
    return rows


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


@pytest.mark.parametrize("word", ["10.211.0.300", "10.0.0.9/TCP", "10.0.0", "fd00::zz/TCP"])
@pytest.mark.parametrize("verb", [["set-state", "maintenance"], ["drain"], ["clear-state"]])
def test_a_word_that_is_no_backend(lb: Run, agent: Agent, verb: list[str], word: str) -> None:
    done = lb("backend", *verb, word)
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert "port is missing" not in done.err


def test_drain_reports_what_it_waits_for(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, at once and when the number of flows changes; stdout has only the result."""
    flows: list[dict[int, int]] = [{1: 9}, {1: 9}, {1: 7}, {1: 7}, {1: 3}, {}]
    sweeps = iter(range(5, 20))

    def status() -> Any:
        agent.flows = flows.pop(0) if flows else {}
        return _swept(agent, next(sweeps))

    monkeypatch.setattr("lbagent.cli.verbs.backend.POLL_S", 0.001)
    monkeypatch.setattr(agent, "status", status)
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "30s")
    assert (done.code, done.out) == (0, "10.0.0.9:8080/TCP drained\n")
    assert done.err.splitlines() == [
        "10.0.0.9:8080/TCP in maintenance; waiting for the next count of flows",
        "flows are left: 10.0.0.9:8080/TCP 7",
        "flows are left: 10.0.0.9:8080/TCP 3",
    ]


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
    """Exit code 6 with the remaining flows; the backend stays in maintenance."""
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "50ms")
    assert done.code == 6
    assert "10.0.0.9:8080/TCP 5" in done.err
    assert json.loads(lb("backend", "list", "-o", "json").out)[0]["state"] == "maintenance"


def _drain_lines(lb: Run) -> list[str]:
    """Return the drains of `status`; N stands for 0 to 9 seconds (the machine may be busy)."""
    lines = lb("status").out.splitlines()
    return [re.sub(r"\b\d s\b", "N s", line) for line in lines if line.startswith("drain ")]


def test_a_drain_is_shown(lb: Run, agent: Agent) -> None:
    """In `backend list`, as a column once there is one, in JSON and in `status`; a second drain of a backend joins the first."""
    assert "DRAIN" not in lb("backend", "list").out
    assert not [line for line in lb("status").out.splitlines() if line.startswith("drain ")]
    agent.flows = {1: 5, 2: 1}
    (row,) = AgentClient().start_drain(["10.0.0.9:8080"], 300.0)
    assert (row["drain"]["state"], row["drain"]["flows"], row["drain"]["flows_at_start"]) == ("draining", 5, 5)
    assert lb("backend", "drain", "10.0.0.10:8080", "--timeout", "50ms").code == 6
    agent.flows = {1: 4, 2: 1}
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "50ms")
    assert (done.code, "10.0.0.9:8080/TCP 4" in done.err) == (6, True)
    joined = _rows(lb)[0]["drain"]
    assert (joined["state"], joined["since"], joined["timeout_s"]) == ("draining", row["drain"]["since"], 300.0)
    assert (joined["flows"], joined["flows_at_start"], 290 < joined["remaining_s"] <= 300) == (4, 5, True)
    assert "drain" not in _rows(lb)[2]
    header, *lines = (line.split() for line in lb("backend", "list").out.splitlines())
    at = header.index("DRAIN")
    assert [line[at : at + 2] for line in lines[:2]] == [["draining", "4/5"], ["timed-out", "1/1"]]
    assert [line[at] for line in lines[2:]] == ["-", "-"]
    drains = json.loads(lb("status", "-o", "json").out)["drains"]
    assert [(each["address"], each["state"]) for each in drains] == [
        ("10.0.0.9:8080/TCP", "draining"),
        ("10.0.0.10:8080/TCP", "timed-out"),
    ]
    assert _drain_lines(lb) == [
        "drain      10.0.0.9:8080/TCP: 4 of 5 flows left after N s; it times out in 5 min",
        "drain      10.0.0.10:8080/TCP: timed out after N s, 1 of 1 flows left; it stays in maintenance",
    ]
    agent.flows, agent.swept = {}, 9
    AgentClient().drains()
    assert "drain      10.0.0.9:8080/TCP: drained N s ago" in _drain_lines(lb)


def test_many_drains_are_some_lines_of_the_status(lb: Run, agent: Agent) -> None:
    for number in range(25):
        address = f"10.0.1.{number}:80/TCP"
        agent.kept_drains.drains[address] = KeptDrain(address=address, since=float(number), deadline=9e9)
    lines = [line for line in lb("status").out.splitlines() if line.startswith("drain ")]
    assert len(lines) == 21
    assert "10.0.1.0:80/TCP: flows not counted yet" in lines[0]
    assert lines[-1] == "drain      5 more; `lbagent backend list` shows them"


def test_a_drain_that_is_cancelled(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = iter(range(10))

    def status() -> Any:
        if next(checks) == 2:
            agent.kept_drains.drains.clear()  # as set-state and clear-state do
        return Agent.status(agent)

    monkeypatch.setattr("lbagent.cli.verbs.backend.POLL_S", 0.001)
    monkeypatch.setattr(agent, "status", status)
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "30s")
    assert (done.code, done.out) == (1, "")
    assert "the drain of 10.0.0.9:8080/TCP was cancelled by set-state or clear-state" in done.err


def test_drain_follows_again_when_the_agent_is_back(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits once, for an agent that restarts; exit code 5 when none comes."""
    agent.swept, agent.flows = 4, {}
    answers, drains = [AgentUnreachable("no agent answers")] * 2, AgentClient.drains

    def sometimes(client: AgentClient) -> Any:
        if answers:
            raise answers.pop()
        agent.swept += 2
        return drains(client)

    monkeypatch.setattr("lbagent.cli.verbs.backend.POLL_S", 0.001)
    monkeypatch.setattr(AgentClient, "drains", sometimes)
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "30s")
    assert (done.code, done.out) == (0, "10.0.0.9:8080/TCP drained\n")
    assert done.err.splitlines()[1:] == ["no agent answers; waiting for it"]
    answers += [AgentUnreachable("no agent answers")] * 9
    monkeypatch.setattr("lbagent.cli.verbs.backend.RECONNECT_S", 0.0)
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "30s")
    assert (done.code, done.out) == (5, "")
    assert "the drain continues when an agent runs" in done.err


@pytest.mark.parametrize("body", [{"timeout_s": -1}, {"timeout_s": "x"}, {}])
def test_drain_refused_by_the_agent(agent: Agent, body: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="nothing was changed"):
        AgentClient()._send("start_drain", {"addresses": ["10.0.0.9:8080"], **body})
    assert agent.current.generation == 3


def test_drain_of_an_agent_that_does_not_answer(lb: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts and sends nothing, like a stopped process; the given wait counts, not a request's own limit."""
    monkeypatch.setattr("lbagent.cli.verbs.backend.ANSWER_S", 0.01)
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "100ms", "--socket", path)
    assert (done.code, done.out) == (6, "")
    assert "did not answer within 0.1 s" in done.err


def test_set_state_from_many_at_once(agent: Agent, lb: Run) -> None:
    """Concurrent writers each get their own answer."""
    got: list[str] = []

    def write(address: str) -> None:
        got.extend(row["address"] for row in AgentClient().set_state([address], "maintenance"))

    threads = [threading.Thread(target=write, args=(address,)) for address in ("10.0.0.9:8080", "10.0.0.10:8080")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(got) == ["10.0.0.10:8080/TCP", "10.0.0.9:8080/TCP"]


def test_drain_of_a_node(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `backend drain --node`, with its exit codes."""
    agent.flows = {}
    monkeypatch.setattr("lbagent.cli.verbs.backend.POLL_S", 0.001)
    monkeypatch.setattr(agent, "status", lambda: _swept(agent, 5))
    assert lb("node", "drain", "nowhere").code == 3
    assert lb("node", "drain").code == 2
    done = lb("node", "drain", "n2", "--timeout", "50ms", "--yes")
    assert done.code == 6
    by_words = {row["address"]: row["state"] for row in _rows(lb)}
    assert by_words["10.0.0.10:8080/TCP"] == "maintenance"
    assert by_words["10.0.0.9:8080/TCP"] == "active"


def test_then_reset(lb: Run, agent: Agent) -> None:
    """What is left is reset: exit code 0; the agent refuses it for a backend that takes new flows."""
    agent.flows = {1: 5}
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "50ms", "--then", "reset")
    assert (done.code, done.out) == (0, "10.0.0.9:8080/TCP reset: 5 flows were left\n")
    assert agent.flows_ended == ["10.0.0.9:8080/TCP"]
    done = lb("backend", "drain", "10.0.0.9:8080", "--timeout", "50ms", "--then", "reset", "-o", "json")
    assert json.loads(done.out.splitlines()[-1]) == {
        "address": "10.0.0.9:8080/TCP",
        "flows": 5,
        "eta_s": 0.0,
        "state": "reset",
    }
    assert lb("backend", "drain", "10.0.0.9:8080", "--then", "kill").code == 2
