"""`status`, `status --wait`, `metrics`."""

from __future__ import annotations

import json
import threading
import time
from functools import partial

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from lbagent.api.agent_status import ConditionStatus, FailingService, MapUsage, Status
from lbagent.api.client import AgentClient
from lbagent.targets.data_plane import DeviceStatus
from tests.api.serving import Agent
from tests.cli.conftest import Run


def test_text(lb: Run, agent: Agent) -> None:
    done = lb("status")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("agent      ready, pid 4711, version 1.2.3, node n1, up ")
    assert lines[1] == "state      generation 3: 2 services, 4 frontends, 4 backends"
    assert "source     folder /etc/lb: 7 objects, generation 1" in lines
    assert "  a.yaml:3: spec: bad" in lines


def test_maps_are_shown_when_full_or_asked_for(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "lb4_service" not in lb("status").out
    assert "map        lb4_service: 3 of 100 (3%)" in lb("status", "-o", "wide").out
    full = replace(agent.status(), maps=[MapUsage("lb4_backend", 99, 100)])
    monkeypatch.setattr(agent, "status", lambda: full)
    assert "lb4_backend: 99 of 100 (99%)" in lb("status").out


def test_json(lb: Run, agent: Agent) -> None:
    assert json.loads(lb("status", "-o", "json").out)["generation"] == 3


def test_trouble_ends_with_one(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that cannot be written is named with its error; so is a device without programs."""
    agent.problems = ["the manifest folder is gone; kept 7 objects"]
    assert lb("status").code == 0
    bad = replace(
        agent.status(),
        failing=[FailingService("10.96.0.1:80/TCP", "shop/web", "lb4_service is full; raise --max-service-slots", 2.5)],
        devices=[DeviceStatus("eth0", 2, ["xdp", "tc_egress"]), DeviceStatus("eth9", 0, [], "no such device")],
    )
    monkeypatch.setattr(agent, "status", lambda: bad)
    done = lb("status")
    assert done.code == 1
    assert (
        "failing    10.96.0.1:80/TCP shop/web: lb4_service is full; raise --max-service-slots; next try in 2 s"
        in done.out
    )
    assert "device     eth0: xdp, tc_egress" in done.out
    assert "device     eth9: not attached (no such device)" in done.out
    assert "problem    the manifest folder is gone; kept 7 objects" in done.out


def test_a_condition_ends_with_one(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition and the remedy; a recently repaired part is shown too. Waiting for readiness does not wait for health."""
    off = ConditionStatus("forwarding-off", "IPv4", "IPv4 forwarding is off", "sysctl -w net.ipv4.ip_forward=1")
    link = ConditionStatus(
        "link-detached", "eth0-xdp", "its link was detached; attached again", "", time.time() - 12.4, True
    )
    bad = replace(agent.status(), conditions=[link, off])
    monkeypatch.setattr(agent, "status", lambda: bad)
    done = lb("status")
    assert done.code == 1
    assert "fault      IPv4 forwarding is off; sysctl -w net.ipv4.ip_forward=1" in done.out
    assert "mended     its link was detached; attached again (12 s ago)" in done.out  # plain words: a word of status
    assert json.loads(lb("status", "-o", "json").out)["conditions"][1]["name"] == "forwarding-off"
    assert lb("status", "-o", "json").code == 1
    assert lb("status", "--wait", "5s").code == 0


def test_what_is_degraded_does_not_hide_a_fault(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable endpoint of a tenant is a line and exit code 0; a fault comes first and ends with 1; --strict counts both."""
    dead = ConditionStatus(
        "next-hop-unresolved", "10.7.0.9 eth0", "next hop 10.7.0.9 does not answer", severity="degraded"
    )
    off = ConditionStatus("forwarding-off", "IPv4", "IPv4 forwarding is off")
    found = [dead]
    monkeypatch.setattr(agent, "status", partial(_with_conditions, agent.status(), found))
    done = lb("status")
    assert done.code == 0
    assert "degraded   next hop 10.7.0.9 does not answer" in done.out
    assert (lb("status", "--strict").code, lb("status", "-o", "json", "--strict").code) == (1, 1)
    assert json.loads(lb("status", "-o", "json").out)["conditions"][0]["severity"] == "degraded"
    assert (lb("status", "--wait", "5s").code, lb("status", "--wait", "5s", "--strict").code) == (0, 1)
    found.append(off)
    done = lb("status")
    assert done.code == 1
    assert done.out.index("fault      IPv4") < done.out.index("degraded ")
    found.clear()
    assert (lb("status").code, lb("status", "--strict").code) == (0, 0)


def _with_conditions(status: Status, found: list[ConditionStatus]) -> Status:
    return replace(status, conditions=list(found))


def test_a_sentence_is_shown_once(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """`problems` has the text of some conditions, too."""
    full = ConditionStatus("state-dir-unusable", "/var/lib/x", "--state-dir /var/lib/x cannot be written", "make room")
    bad = replace(agent.status(), conditions=[full], problems=[full.text, "another sentence"])
    monkeypatch.setattr(agent, "status", lambda: bad)
    out = lb("status").out
    assert out.count(full.text) == 1
    assert "problem    another sentence" in out


def test_a_condition_of_an_earlier_agent_is_a_fault(lb: Run, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no severity."""
    off = {"name": "forwarding-off", "subject": "IPv4", "text": "off", "remedy": "", "since": 0.0, "mended": False}
    answer = to_builtins(agent.status()) | {"conditions": [off]}
    monkeypatch.setattr(AgentClient, "status", lambda _self: answer)
    assert lb("status").code == 1


def test_not_ready(lb: Run, agent: Agent) -> None:
    agent.ready = False
    done = lb("status")
    assert done.code == 1
    assert done.out.startswith("agent      starting")


def test_wait_ready_at_once(lb: Run, agent: Agent) -> None:
    assert lb("status", "--wait", "30s").code == 0


def test_wait_until_ready(lb: Run, agent: Agent) -> None:
    agent.ready = False
    timer = threading.Timer(0.2, lambda: setattr(agent, "ready", True))
    timer.start()
    done = lb("status", "--wait", "1m")
    timer.join()
    assert done.code == 0
    assert "ready" in done.out


def test_wait_found_but_not_ready(lb: Run, agent: Agent) -> None:
    agent.ready = False
    done = lb("status", "--wait", "200ms")
    assert done.code == 6
    assert "not ready" in done.err


def test_wait_never_found(lb: Run, no_agent: None) -> None:
    assert lb("status", "--wait", "200ms").code == 5


@pytest.mark.parametrize("word", ["0", "0.05", "50ms", "0m0s", "0.00001h"])
def test_times(lb: Run, no_agent: None, word: str) -> None:
    """All these are short times."""
    assert lb("status", "--wait", word).code == 5


def test_without_an_agent(lb: Run, no_agent: None) -> None:
    """Stdout shows what still serves, stderr that no agent answers; with -o json stdout stays empty."""
    done = lb("status")
    assert done.code == 5
    assert "no maps can be read at" in done.out
    assert lb("status", "-o", "json").out == ""


def test_metrics(lb: Run, agent: Agent) -> None:
    assert lb("metrics").out == "lbagent_ready 1\nlbagent_generation 3\n"
