"""The API over a real unix socket: rows, errors with exit codes, bounds, the socket itself."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbagent.api.client import AgentClient
from lbagent.errors import (
    AgentUnreachable,
    ConfigError,
    Conflict,
    InvalidTransition,
    LbError,
    NotFound,
    Refused,
    TimedOut,
)
from tests.api.serving import Agent, served


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


@pytest.fixture
def client(agent: Agent, path: Path) -> Iterator[AgentClient]:
    with served(agent, path):
        yield AgentClient(str(path))


def raw(path: Path, data: bytes) -> bytes:
    """Send bytes, return all that comes back."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        out = b""
        while piece := sock.recv(65536):
            out += piece
        return out


def test_service_rows_follow_the_contract(client: AgentClient) -> None:
    """Field names and texts of design.md §8; wildcard rows are no services."""
    rows = client.services()
    assert [row["id"] for row in rows] == [1, 10, 11, 2]
    assert rows[0] == {
        "id": 1,
        "namespace": "shop",
        "name": "web",
        "port_name": "http",
        "frontend": "10.96.0.10:80/TCP",
        "scope": "external",
        "type": "ClusterIP",
        "flags": ["ClusterIP", "non-routable"],
        "algorithm": "random",
        "affinity_timeout_s": 0,
        "ext_traffic_policy": "Cluster",
        "int_traffic_policy": "Cluster",
        "backends": [
            {
                "id": 1,
                "address": "10.0.0.9:8080/TCP",
                "state": "active",
                "weight": 100,
                "node": "n1",
                "zone": "a",
                "local": True,
            }
            | {"selectable": True},
            {"id": 2, "address": "10.0.0.10:8080/TCP", "state": "active", "weight": 100, "node": "n2", "zone": "b"}
            | {"local": False, "selectable": True},
            {"id": 3, "address": "10.0.0.11:8080/TCP", "state": "terminating", "weight": 100, "node": "n2", "zone": ""}
            | {"local": False, "selectable": False},
        ],
    }
    assert (rows[1]["algorithm"], rows[1]["affinity_timeout_s"], rows[1]["ext_traffic_policy"]) == (
        "maglev",
        60,
        "Local",
    )
    assert (rows[2]["frontend"], rows[2]["scope"]) == ("192.0.2.10:80/TCP", "internal")
    assert rows[3]["frontend"] == "[fd00::a]:53/UDP"


def test_services_by_name(client: AgentClient) -> None:
    assert [row["id"] for row in client.services("kube-system", "dns")] == [2]
    assert client.services("kube-system", "web") == []


def test_backend_rows(client: AgentClient, agent: Agent) -> None:
    rows = client.backends()
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["services"] == ["shop/web"]
    assert [row["flows"] for row in rows] == [5, 0, 0, 0]
    agent.flows = None
    assert client.backends()[0]["flows"] == -1


def test_set_state(client: AgentClient, agent: Agent) -> None:
    """The answer is what is in the maps now; without a protocol it is TCP, or the only one there is."""
    (row,) = client.set_state(["10.0.0.9:8080"], "maintenance")
    assert (row["address"], row["state"]) == ("10.0.0.9:8080/TCP", "maintenance")
    (row,) = client.set_state(["10.0.0.53:53"], "active")
    assert (row["address"], row["state"]) == ("10.0.0.53:53/UDP", "active")
    assert agent.current.generation == 5


@pytest.mark.parametrize(
    ("addresses", "state", "error", "words"),
    [
        (["10.0.0.77:8080"], "maintenance", NotFound, ["10.0.0.77:8080/TCP"]),
        (["10.0.0.11:8080"], "active", Refused, ["terminating", "active", "10.0.0.11:8080"]),
        (["10.0.0.9:8080"], "terminating", Refused, ["active", "terminating", "10.0.0.9:8080"]),
        (["10.0.0.9:8080"], "down", ConfigError, ["'down'", "quarantined"]),
        (["10.0.0.9"], "active", ConfigError, ["10.0.0.9"]),
        ([], "active", ConfigError, ["no backend"]),
        (["10.0.0.9:8080", "10.0.0.11:8080"], "maintenance", Refused, ["nothing was changed"]),
    ],
)
def test_set_state_refused(
    client: AgentClient, agent: Agent, addresses: list[str], state: str, error: type[LbError], words: list[str]
) -> None:
    """Exit codes 2, 3, 4 come over the wire with one sentence, and nothing changed."""
    with pytest.raises(error) as caught:
        client.set_state(addresses, state)
    assert caught.value.exit_code == error.exit_code
    assert all(word in str(caught.value) for word in words)
    assert agent.current.generation == 3


def test_transition_error_keeps_its_code(client: AgentClient) -> None:
    assert issubclass(InvalidTransition, Refused)
    with pytest.raises(Refused) as caught:
        client.set_state(["10.0.0.11:8080"], "quarantined")
    assert caught.value.exit_code == 4


def test_status(client: AgentClient) -> None:
    status = client.status()
    assert (status["ready"], status["pid"], status["generation"]) == (True, 4711, 3)
    assert status["sources"][0]["messages"] == ["a.yaml:3: spec: bad"]


def test_wait_returns_at_once_when_it_differs(client: AgentClient) -> None:
    assert client.wait_change(2, 30) == 3


def test_wait_ends_with_the_change(client: AgentClient, agent: Agent) -> None:
    """A long poll is answered by the change, not by its deadline."""
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(client.wait_change(3, 60)))
    waiter.start()
    client.set_state(["10.0.0.9:8080"], "maintenance")
    waiter.join(10)
    assert got == [4]


def test_wait_ends_with_its_deadline(client: AgentClient) -> None:
    assert client.wait_change(3, 0.05) == 3


@pytest.mark.parametrize("query", ["generation=x", "timeout_s=nan", "timeout_s=inf", "generation=1&timeout_s=soon"])
def test_wait_refuses_nonsense(client: AgentClient, path: Path, query: str) -> None:
    assert raw(path, f"GET /v1/wait?{query} HTTP/1.0\r\n\r\n".encode()).startswith(b"HTTP/1.1 400 ")


def test_metrics_over_the_socket(client: AgentClient) -> None:
    assert client.metrics() == "lbagent_ready 1\nlbagent_generation 3\n"


def test_metrics_over_tcp(agent: Agent, path: Path) -> None:
    """Opt-in, and nothing of the API is there."""
    with served(agent, path, "127.0.0.1:0") as server:
        base = f"http://127.0.0.1:{server.metrics_port}"
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert response.read() == b"lbagent_ready 1\nlbagent_generation 3\n"
        for other in ("/v1/services", "/v1/status", "/"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + other, timeout=10)


def test_a9_kube_proxys_pages_beside_the_metrics(agent: Agent, path: Path) -> None:
    with served(agent, path, "127.0.0.1:0") as server:
        base = f"http://127.0.0.1:{server.metrics_port}"
        with urllib.request.urlopen(f"{base}/proxyMode", timeout=10) as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            assert response.read() == b"lbagent"
        with urllib.request.urlopen(f"{base}/configz", timeout=10) as response:
            assert json.load(response) == {"lbagent": {"node-name": "n1"}}


@pytest.mark.parametrize("page", ["metrics", "proxyMode", "configz"])
def test_these_pages_are_there_for_any_method_and_head_is_without_a_body(agent: Agent, path: Path, page: str) -> None:
    with served(agent, path, "127.0.0.1:0") as server:
        answers = {}
        for method in ("GET", "OPTIONS", "HEAD"):
            request = urllib.request.Request(f"http://127.0.0.1:{server.metrics_port}/{page}", method=method)
            with urllib.request.urlopen(request, timeout=10) as response:
                answers[method] = (response.status, response.headers["Content-Type"], response.read())
    status, content_type, body = answers["GET"]
    assert (status, len(body) > 0) == (200, True)
    assert answers["OPTIONS"] == answers["GET"]
    assert answers["HEAD"] == (200, content_type, b"")


def test_no_metrics_unless_asked(agent: Agent, path: Path) -> None:
    with served(agent, path) as server:
        assert server.metrics_port == 0


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1", "127.0.0.1:99999", "192.0.2.1:0"])
def test_bad_metrics_address(agent: Agent, path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="metrics-address"), served(agent, path, address):
        pass


def test_large_answers_come_whole(client: AgentClient, agent: Agent) -> None:
    """Thousands of rows are sent in pieces and arrive as one list."""
    agent.current = type(agent.current)(3, agent.current.services[1:2] * 3000)
    assert len(client.services()) == 3000


def test_unknown_paths_and_methods(client: AgentClient, path: Path) -> None:
    assert raw(path, b"GET /v1/secrets HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert raw(path, b"PUT /v1/services HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert raw(path, b"DELETE /v1/services HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert raw(path, b"GET /v1/../v1/services HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/3\r\n\r\n", b"400"),
        (b"GET http://x/v1/status HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/1.1\r\nbad line\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/1.1\r\nHost : x\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", b"431"),
        (b"PUT /v1/backends/state HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n", b"413"),
        (b"PUT /v1/backends/state HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"PUT /v1/backends/state HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", b"400"),
        (b"PUT /v1/backends/state HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"PUT /v1/backends/state HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", b"400"),
        (b"PUT /v1/backends/state HTTP/1.0\r\nContent-Length: 9\r\n\r\n{nonsense", b"400"),
        (
            b'PUT /v1/backends/state HTTP/1.0\r\nContent-Length: 41\r\n\r\n{"addresses":[1],"state":"x","extra":123}',
            b"400",
        ),
        (b"PUT /v1/backends/state HTTP/1.0\r\nContent-Length: 10000\r\n\r\n" + b"[" * 5000 + b"]" * 5000, b"400"),
        (
            b'PUT /v1/backends/state HTTP/1.0\r\nContent-Length: 30008\r\n\r\n{"x": '
            + b'{"a":' * 5000
            + b"1"
            + b"}" * 5000
            + b"}",
            b"400",
        ),
        (b'PUT /v1/backends/state HTTP/1.0\r\nContent-Length: 13\r\n\r\n{"state":"\xff"}', b"400"),
        (b"GET /v1/status?" + b"a=1&" * 50 + b" HTTP/1.0\r\n\r\n", b"400"),
        (b"GET /v1/status", b"400"),
    ],
)
def test_malformed_requests(client: AgentClient, path: Path, data: bytes, status: bytes) -> None:
    """Each has its status, none hurts the server."""
    assert raw(path, data).split(b" ")[1] == status
    assert client.status()["ready"]


def test_a_body_that_never_comes(client: AgentClient, path: Path) -> None:
    """The client went away: nothing to answer, the server lives."""
    assert raw(path, b"PUT /v1/backends/state HTTP/1.1\r\nContent-Length: 50\r\n\r\n{") == b""
    assert client.status()["ready"]


def test_pipelined_requests_on_one_connection(client: AgentClient, path: Path) -> None:
    answer = raw(path, b"GET /v1/wait?generation=0 HTTP/1.1\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(json.dumps({"generation": 3}, separators=(",", ":")).encode()) == 3


def test_connections_are_bounded(client: AgentClient, path: Path) -> None:
    """The 65th is turned away; when the others go, everything is as before."""
    held = []
    try:
        for _ in range(64):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(path))
            sock.sendall(b"GET /v1/wait?generation=0 HTTP/1.1\r\n\r\n")
            sock.recv(1)
            held.append(sock)
        assert raw(path, b"").startswith(b"HTTP/1.1 503 ")
        with pytest.raises(AgentUnreachable, match="too many connections"):
            client.status()
    finally:
        for sock in held:
            sock.close()
    for _ in range(100):
        try:
            assert client.status()["ready"]
            return
        except AgentUnreachable:
            threading.Event().wait(0.02)
    pytest.fail("connections were not freed")


def test_an_agent_failure_is_one_sentence(client: AgentClient, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "status", lambda: 1 / 0)
    with pytest.raises(LbError, match="its log says why") as caught:
        client.status()
    assert caught.value.exit_code == 1
    assert "Zero" not in str(caught.value)


def test_socket_rights(client: AgentClient, path: Path) -> None:
    """0600 in a directory of 0755, and no draft left behind."""
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o755
    assert os.listdir(path.parent) == ["agent.sock"]


def test_the_socket_goes_with_the_server(agent: Agent, path: Path) -> None:
    with served(agent, path):
        pass
    assert not path.exists()


def test_a_stale_socket_is_replaced(agent: Agent, path: Path) -> None:
    """What an agent killed by SIGKILL leaves behind."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served(agent, path):
        assert AgentClient(str(path)).status()["ready"]


def test_a_second_server_is_refused(agent: Agent, path: Path) -> None:
    with served(agent, path):
        with pytest.raises(Conflict, match="another agent"), served(Agent(), path):
            pass
        assert AgentClient(str(path)).status()["ready"]


def test_a_file_in_the_way(agent: Agent, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"), served(agent, path):
        pass
    assert path.read_text() == "precious"


def test_other_forms_of_a_path(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """unix://PATH as the client takes it, and a path relative to where the agent was started."""
    monkeypatch.chdir(tmp_path)
    for text in (f"unix://{tmp_path}/a.sock", "a.sock"):
        with served(agent, text):
            assert AgentClient(f"{tmp_path}/a.sock").status()["ready"]


@pytest.mark.parametrize("name", ["agent.sock", "a"])
def test_paths_as_long_as_the_kernel_takes(agent: Agent, tmp_path: Path, name: str) -> None:
    """107 bytes; a few less where the name is shorter than a process id."""
    most = 107 - max(0, len(f".{os.getpid()}") - len(name))
    for length, fits in ((most, True), (most + 1, False)):
        folder = tmp_path / ("d" * (length - len(str(tmp_path)) - len(name) - 2))
        path = folder / name
        assert len(str(path)) == length
        if fits:
            with served(agent, path):
                assert AgentClient(str(path)).status()["ready"]
            assert list(folder.iterdir()) == []
        else:
            with pytest.raises(ConfigError, match=f"1 to {most} bytes"), served(agent, path):
                pass
            assert not folder.exists()


def test_somebody_who_has_no_time_is_there_nevertheless(agent: Agent, path: Path) -> None:
    """A stopped agent whose queue is full keeps its socket."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(Conflict, match="another agent"), served(agent, path):
            pass
        with pytest.raises(AgentUnreachable, match="too many connections"):
            AgentClient(str(path), timeout_s=0.1).status()


def test_paths_that_cannot_be(agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / ("x" * 120), tmp_path / "file" / "agent.sock", tmp_path, ""):
        with pytest.raises(ConfigError, match="socket"), served(agent, path):
            pass


class TestClient:
    """What the client reports when there is no agent."""

    def test_no_agent(self, tmp_path: Path) -> None:
        with pytest.raises(AgentUnreachable, match="lbagent agent") as caught:
            AgentClient(str(tmp_path / "none.sock")).status()
        assert caught.value.exit_code == 5

    def test_a_dead_agents_socket(self, path: Path) -> None:
        path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with pytest.raises(AgentUnreachable, match="refused"):
            AgentClient(str(path)).status()

    def test_a_silent_one(self, path: Path) -> None:
        path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(path))
            silent.listen()
            with pytest.raises(TimedOut, match="0.1 s"):
                AgentClient(str(path), timeout_s=0.1).status()

    @pytest.mark.parametrize(
        "answer", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\n\r\nhello", b"HTTP/1.1 500 No\r\n\r\nhello", b""]
    )
    def test_a_stranger(self, path: Path, answer: bytes) -> None:
        path.parent.mkdir()
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.bind(str(path))
            stranger.listen()

            def serve() -> None:
                peer, _ = stranger.accept()
                peer.recv(65536)
                peer.sendall(answer)
                peer.close()

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises(AgentUnreachable):
                AgentClient(str(path)).status()
            thread.join()

    def test_socket_from_the_environment(
        self, client: AgentClient, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LBAGENT_SOCKET", f"unix://{path}")
        assert AgentClient().status()["ready"]
