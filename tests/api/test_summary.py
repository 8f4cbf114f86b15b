"""`/v1/summary` and `/v1/events`: the fields, the streams and their bounds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lbagent.api import node_summary
from lbagent.api.agent_status import ConditionStatus, FailingService, Status
from lbagent.api.client import AgentClient
from lbagent.errors import ConfigError, LbError
from lbagent.http import http_server
from lbagent.model.state import State
from lbagent.targets.data_plane import Counters
from tests.api.serving import Agent, served
from tests.sync.generations import generation

KEYS = ["time", "ready", "generation", "services", "backends", "reasons", "flows", "changes", "problems"]
WEB = "10.96.0.10:80/TCP"


@pytest.fixture
def agent() -> Agent:
    agent = Agent()
    agent.counters = Counters(
        reasons={"fwd_new": (7, 700), "drop_race": (9, 90), "fwd_icmp": (0, 0)},
        services={1: (100, 9000), 2: (300, 8000)},
        new_flows={2: 30},
        backends={2: (40, 4000)},
        live_flows={1: 5, 4: 4},
        sessions={"tcp": 5, "udp": 2},
    )
    agent.history = [generation(number) for number in range(30, 0, -1)]
    return agent


@pytest.fixture
def port(agent: Agent, tmp_path: Path) -> Iterator[int]:
    with served(agent, tmp_path / "agent.sock", "127.0.0.1:0", ui_hosts=()) as server:
        yield server.metrics_port


def client_of(tmp_path: Path) -> AgentClient:
    return AgentClient(str(tmp_path / "agent.sock"))


def stream_of(port: int) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/v1/events")
    return connection.getresponse()


def event_of(stream: HTTPResponse) -> Any:
    """Return the next event: its name and its data."""
    name = "message"
    while line := stream.readline().decode():
        key, _, value = line.rstrip("\n").partition(": ")
        if key == "event":
            name = value
        elif key == "data":
            return name, json.loads(value)
    raise AssertionError("the stream ended")


def test_the_fields(agent: Agent, port: int, tmp_path: Path) -> None:
    found = client_of(tmp_path).summary()
    assert list(found) == KEYS
    assert abs(found["time"] - time.time()) < 10
    assert (found["ready"], found["generation"], found["flows"]) == (True, 3, 7)
    assert found["services"][:2] == [
        {"service": "kube-system/dns", "frontend": "[fd00::a]:53/UDP", "selectable": 0, "backends": 1, "packets": 300, "bytes": 8000, "new_flows": 30, "flows": 4},
        {"service": "shop/web", "frontend": WEB, "selectable": 2, "backends": 3, "packets": 100, "bytes": 9000, "new_flows": None, "flows": None},
    ]  # fmt: skip
    assert {row["frontend"] for row in found["services"]} >= {"192.0.2.10:80/TCP", "192.0.2.10:80/TCP/i"}
    assert found["services"][2]["packets"] is None, "a frontend without a counter"
    assert found["backends"][0] == {
        "backend": "10.0.0.10:8080/TCP", "node": "n2", "state": "active", "flows": 0, "packets": 40, "bytes": 4000,
    }  # fmt: skip
    assert found["reasons"] == [
        {"reason": "drop_race", "packets": 9, "bytes": 90},
        {"reason": "fwd_new", "packets": 7, "bytes": 700},
    ]
    assert [each["generation"] for each in found["changes"]] == list(range(30, 10, -1))


def test_what_is_wrong(agent: Agent) -> None:
    """Conditions, frontends that fail and sentences, each once; what the agent repaired is left out."""
    status = Status(
        *(True, "1", 1, "n1", 0.0, 1, 0, 0, 0),
        conditions=[
            ConditionStatus("map-full", "lb4_service", "the table is 90 % full", "make it larger"),
            ConditionStatus("device", "eth0", "was away", mended=True),
        ],
        failing=[FailingService(WEB, "shop/web", "no room")],
        problems=["the table is 90 % full", "the API server does not answer"],
    )
    reading = SimpleNamespace(state=State(), counters=Counters())
    made = node_summary.NodeSummary(lambda: status, lambda: reading, lambda _: [])
    found = asyncio.run(made.now())
    assert found.problems == [
        "the table is 90 % full; make it larger",
        f"{WEB} shop/web: no room",
        "the API server does not answer",
    ]
    assert (found.flows, found.reasons) == (None, [])


def test_rows(agent: Agent, port: int, tmp_path: Path) -> None:
    """The busiest rows; 0: all."""
    client = client_of(tmp_path)
    assert [row["packets"] for row in client.summary(rows=1)["services"]] == [300]
    assert len(client.summary(rows=0)["services"]) == 4
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/v1/summary?rows=1")
    assert len(json.load(connection.getresponse())["services"]) == 4, (
        "browsers do not choose how much the agent computes"
    )
    connection.close()
    for wrong in ("-1", "x", "²"):
        with pytest.raises(ConfigError, match="rows must be a whole number"):
            client.summary(rows=wrong)


def test_a_stream(agent: Agent, port: int) -> None:
    stream = stream_of(port)
    headers = {name.lower(): value for name, value in stream.getheaders()}
    assert (stream.status, headers["content-type"], headers["cache-control"]) == (200, "text/event-stream", "no-store")
    first, second = event_of(stream), event_of(stream)
    assert first[0] == second[0] == "message"
    assert list(first[1]) == KEYS
    assert 1.0 < second[1]["time"] - first[1]["time"] < 10.0
    stream.close()


def test_a_failure_is_an_event(agent: Agent, port: int) -> None:
    """The stream continues, and so do the values."""
    stream = stream_of(port)
    assert event_of(stream)[0] == "message"

    class Broken(Counters):
        @property
        def sessions(self) -> dict[str, int]:  # type: ignore[override]
            raise LbError("lb_metrics: no memory")

    agent.counters, whole = Broken(), agent.counters
    assert event_of(stream) == ("trouble", {"error": "lb_metrics: no memory"})
    agent.counters = whole
    assert event_of(stream)[0] == "message"
    stream.close()


def test_streams_are_bounded(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one gets 503; one that leaves makes room. Other requests are answered."""
    monkeypatch.setattr(node_summary, "MAX_STREAMS", 3)
    monkeypatch.setattr(node_summary, "EVENT_INTERVAL_S", 0.1)
    with served(agent, tmp_path / "agent.sock", "127.0.0.1:0", ui_hosts=()) as server:
        streams = [stream_of(server.metrics_port) for _ in range(4)]
        assert [each.status for each in streams] == [200, 200, 200, 503]
        assert "3 event streams are open already" in json.loads(streams[3].read())["error"]
        assert event_of(streams[2])[0] == "message"
        assert client_of(tmp_path).summary()["ready"]
        streams[0].close()
        end = time.monotonic() + 15
        while (again := stream_of(server.metrics_port)).status != 200:
            assert time.monotonic() < end, "a stream whose client left is still counted"
            time.sleep(0.2)
        for stream in (*streams[1:], again):
            stream.close()


def test_a_slow_client_is_dropped(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing: it is cut off, and neither others nor the memory notice it."""
    monkeypatch.setattr(http_server, "EVENT_WRITE_S", 0.5)
    monkeypatch.setattr(node_summary, "EVENT_INTERVAL_S", 0.3)
    agent.problems = ["x" * 1_000_000]  # each event fills the buffers of the kernel
    with served(agent, tmp_path / "agent.sock", "127.0.0.1:0", ui_hosts=()) as server, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.metrics_port))
        slow.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        other = stream_of(server.metrics_port)
        times = [event_of(other)[1]["time"] for _ in range(12)]
        assert max(late - early for early, late in itertools.pairwise(times)) < 5.0
        other.close()
        slow.settimeout(10)
        end = time.monotonic() + 10
        with contextlib.suppress(ConnectionResetError):
            while slow.recv(1 << 20):
                assert time.monotonic() < end, "the stream of the slow client continues"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9100", "127.0.0.1", "127.0.0.1:1", "lb.example.org:9100"])
def test_hosts_that_are_answered(agent: Agent, tmp_path: Path, host: str) -> None:
    assert _status(agent, tmp_path, host=host) == [200, 200]


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.2", "127.0.0.1.evil.example", "localhost.evil.example", "[::1]", "x@localhost", "localhost, evil.example"]
)  # fmt: skip
def test_hosts_that_are_not(agent: Agent, tmp_path: Path, host: str) -> None:
    """A name that leads to this address is not enough: a page of that name would read the answers (DNS rebinding)."""
    assert _status(agent, tmp_path, host=host) == [421, 421]


def _status(agent: Agent, tmp_path: Path, host: str) -> list[int]:
    found = []
    with served(agent, tmp_path / "agent.sock", "127.0.0.1:0", ui_hosts=("lb.example.org",)) as server:
        for path in ("/", "/v1/summary"):
            connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=10)
            connection.putrequest("GET", path, skip_host=True)
            if host:
                connection.putheader("Host", host)
            connection.endheaders()
            answer = connection.getresponse()
            assert answer.getheader("Access-Control-Allow-Origin") is None
            found.append(answer.status)
            connection.close()
    return found


def test_an_ipv6_listener(agent: Agent, tmp_path: Path) -> None:
    with served(agent, tmp_path / "agent.sock", "[::1]:0", ui_hosts=()) as server:
        connection = HTTPConnection("::1", server.metrics_port, timeout=10)
        connection.request("GET", "/v1/summary")
        assert connection.getresponse().status == 200


def test_headers_and_methods(port: int) -> None:
    for method, path, status in (
        ("GET", "/", 200), ("HEAD", "/", 200), ("HEAD", "/v1/events", 200), ("HEAD", "/v1/summary", 200), ("POST", "/", 405),
        ("PUT", "/v1/summary", 405), ("OPTIONS", "/v1/summary", 405), ("GET", "/v1/status", 404), ("GET", "/v1/backends", 404),
    ):  # fmt: skip
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request(method, path, headers={"Origin": "http://evil.example"})
        answer = connection.getresponse()
        assert answer.status == status, (method, path)
        assert not [name for name, _ in answer.getheaders() if name.lower().startswith("access-control")]
        if status != 404:
            assert answer.getheader("X-Content-Type-Options") == "nosniff"
            assert answer.getheader("Referrer-Policy") == "no-referrer"
            assert answer.getheader("Cache-Control") == "no-store"
            assert (answer.getheader("Content-Security-Policy") or "").startswith(
                "default-src 'none'; style-src 'sha256-"
            )
            assert "unsafe" not in (answer.getheader("Content-Security-Policy") or "")
        if method == "HEAD":
            assert answer.read() == b""
        connection.close()


def test_without_ui_there_is_no_page(agent: Agent, tmp_path: Path) -> None:
    with served(agent, tmp_path / "agent.sock", "127.0.0.1:0") as server:
        for path in ("/", "/v1/summary", "/v1/events"):
            connection = HTTPConnection("127.0.0.1", server.metrics_port, timeout=10)
            connection.request("GET", path)
            assert connection.getresponse().status == 404
            connection.close()
        assert client_of(tmp_path).summary()["ready"], "the socket has it"
