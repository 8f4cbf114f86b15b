"""The real agent over an API server: what it serves while that comes, goes, is another one, or does not know the node."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import Box, endpoints, service
from tests.kube.api_server import Obj
from tests.kube.cluster import kubeconfig, node
from tests.lab.agent import KubeAgent, program
from tests.lab.netns import wait_for
from tests.lab.topology import ROOT, end

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
PORT = 16443
NAME = KubeAgent.name


class Cluster:
    """A box, an API server in it, and its objects."""

    def __init__(self, box: Box) -> None:
        self.box = box
        box.node.ip("link set lo up")
        self.objects = box.folder / "objects.json"
        kubeconfig(box.folder, PORT)
        self.agent = KubeAgent(box, box.manifests, attach="tc")  # type: ignore[arg-type]
        self.agent.devices = ["eth0"]
        self.server = None

    def set(self, *objs: Obj) -> None:
        draft = self.objects.with_suffix(".new")
        draft.write_text(json.dumps([node(NAME), *objs]))
        draft.rename(self.objects)

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.kube.api_server", str(PORT), str(self.objects)]
        self.server = self.box.node.popen(argv, cwd=ROOT)
        self.box.closing.callback(self.stop)

    def stop(self) -> None:
        if self.server is not None:
            end(self.server)
        self.server = None

    def until(self, words: str) -> None:
        wait_for(lambda: words in "\n".join(self.agent.dump()), words, 20)

    def ask_node(self, port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
        with self.box.node.entered():
            asked = http.client.HTTPConnection(host, port, timeout=5)
            asked.request("GET", path)
            answer = asked.getresponse()
            return answer.status, answer.read().decode()


@pytest.fixture
def cluster(box: Box) -> Iterator[Cluster]:
    one = Cluster(box)
    one.set(service("web", "10.96.0.10"), endpoints("web", "10.7.0.2"))
    yield one
    one.agent.remove()


def test_the_maps_follow_the_server_and_stay_while_it_is_away(cluster: Cluster) -> None:
    cluster.start()
    agent = cluster.agent
    agent.start()
    cluster.until("ADDR=10.96.0.10:80/TCP")
    listed = agent.cli("svc", "list").stdout
    assert "web" in listed
    cluster.set(service("web", "10.96.0.10"), endpoints("web", "10.7.0.2"), service("more", "10.96.0.11"))
    cluster.until("ADDR=10.96.0.11:80/TCP")
    dump = agent.dump()
    cluster.stop()
    wait_for(lambda: "source-untrusted" in agent.cli("status", "-o", "json", check=False).stdout, "untrusted", 30)
    assert agent.dump() == dump
    agent.kill()
    agent.start(wait=False)  # continues from the maps
    wait_for(lambda: "what the maps hold is served" in agent.tail(60), "a start without the server", 60)
    wait_for(lambda: agent.cli("status", check=False).returncode == 1, "status", 20)
    status = agent.cli("status", "-o", "json", check=False)
    assert json.loads(status.stdout)["ready"] is False
    assert "the API server does not answer" in status.stdout
    assert [cluster.ask_node(10256, path)[0] for path in ("/readyz", "/healthz")] == [503, 200]
    assert agent.dump() == dump
    cluster.set(service("web", "10.96.0.10"), endpoints("web", "10.7.0.2"))  # one Service went meanwhile
    cluster.start()
    agent.wait_ready()
    wait_for(lambda: not any("10.96.0.11" in line for line in agent.dump()), "the deletion", 20)
    cluster.until("ADDR=10.96.0.10:80/TCP")
    wait_for(lambda: agent.cli("status", check=False).returncode == 0, "a good status", 20)


def test_a_start_without_a_server_is_given_time_by_the_supervisor(cluster: Cluster) -> None:
    """Nothing is there to serve, so it is not READY; a restart would not bring the server."""
    path = cluster.box.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(90)
        cluster.agent.start(wait=False, env={"NOTIFY_SOCKET": str(path)})
        for _ in range(2):
            assert sock.recv(200).startswith(b"EXTEND_TIMEOUT_USEC=60000000\nSTATUS=waiting for")
        cluster.start()
        cluster.agent.wait_ready()
        while (said := sock.recv(200)) != b"READY=1":
            assert said.startswith((b"EXTEND", b"STATUS=")), said


def test_it_is_not_ready_before_it_was_told_anything(cluster: Cluster) -> None:
    agent = cluster.agent
    agent.start(wait=False)
    wait_for(
        lambda: "the API server does not answer" in agent.cli("status", "-o", "json", check=False).stdout, "status", 60
    )
    status = json.loads(agent.cli("status", "-o", "json", check=False).stdout)
    assert status["ready"] is False
    assert "waiting for the first list of kube" in " ".join(status["problems"])
    assert [cluster.ask_node(10256, path)[0] for path in ("/readyz", "/livez")] == [503, 200]
    cluster.start()
    agent.wait_ready()
    wait_for(lambda: cluster.ask_node(10256, "/readyz")[0] == 200, "the self-test", 30)
    cluster.until("ADDR=10.96.0.10:80/TCP")


def test_a_server_that_was_replaced_takes_nothing_away_until_that_is_confirmed(
    cluster: Cluster, tmp_path: Path
) -> None:
    shop = [obj for n in range(20) for obj in (service(f"s{n}", f"10.96.1.{n}"), endpoints(f"s{n}", "10.7.0.2"))]
    cluster.set(*shop)
    cluster.start()
    config = tmp_path / "lbagent.yaml"
    config.write_text("max-delete-ratio: 50\n")
    agent = cluster.agent
    agent.arguments = ["--config", str(config)]
    agent.start()
    cluster.until("ADDR=10.96.1.19:80/TCP")
    dump = agent.dump()
    kept = cluster.box.folder / "state" / "kube-services.json"
    wait_for(kept.exists, "the names of the Services", 20)
    cluster.stop()
    agent.kill()
    cluster.set()
    cluster.start()
    agent.start(wait=False)
    wait_for(lambda: "of an earlier agent" in agent.cli("status", check=False).stdout, "the condition", 60)
    assert agent.dump() == dump
    assert 'lbagent_source_held_objects{source="kube"} 20' in agent.cli("metrics").stdout
    config.write_text("max-delete-ratio: 100\n")
    assert agent.process is not None
    agent.process.send_signal(1)  # SIGHUP
    wait_for(lambda: not any("SVC" in line for line in agent.dump()), "no Service", 30)


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("other", None, 3, ("no node 'other'", "it has demo-node", "--node-name")),
        (NAME, "", 2, ("kubeconfig",)),
        (NAME, "current-context: x\n", 2, ("'x' is not among its contexts",)),
    ],
)
def test_what_ends_a_start(cluster: Cluster, name: str, text: str | None, code: int, words: tuple[str, ...]) -> None:
    cluster.start()
    cluster.agent.name = name
    if text is not None:
        (cluster.box.folder / "kubeconfig").write_text(text)
    done = cluster.box.run(*cluster.agent.argv()[len(program()) :])
    assert done.returncode == code, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_kube_proxys_ports(cluster: Cluster) -> None:
    """Rules A8, A9: /healthz, /livez, the metrics and a health check node port; a port that is taken, as by kube-proxy."""
    local = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000}
    here = endpoints("web", "10.7.0.2")
    here["endpoints"][0]["nodeName"] = NAME
    cluster.set(service("web", "10.96.0.10", **local), here)
    cluster.start()
    agent = cluster.agent
    with cluster.box.node.entered():
        taken = socket.create_server(("127.0.0.1", 10249))
    agent.start()
    cluster.until("ADDR=10.96.0.10:80/TCP")
    ask = cluster.ask_node
    status, text = ask(10256, "/healthz")
    assert status == 200
    assert "lastUpdated" in text
    assert ask(10256, "/livez", "::1")[0] == 200
    status, text = ask(31000, "/", "10.7.0.1")
    assert (status, json.loads(text)["localEndpoints"]) == (200, 1)
    wait_for(lambda: "port-not-open" in agent.cli("status", "-o", "json", check=False).stdout, "the condition", 20)
    leftovers = ("doctor", "--kubernetes", "--device", "eth0")
    found = agent.cli(*leftovers, check=False).stdout
    assert "port 10249 (/metrics) is taken by" in found
    assert "port 10256" not in found, "the agent's own port is no leftover of kube-proxy"
    taken.close()
    wait_for(lambda: "port-not-open" not in agent.cli("status", "-o", "json", check=False).stdout, "its end", 30)
    assert ask(10249, "/proxyMode") == (200, "lbagent")
    assert "is taken by" not in agent.cli(*leftovers, check=False).stdout
    assert 'kubeproxy_proxy_healthz_total{code="200"} 1' in ask(10249, "/metrics")[1]
    assert json.loads(ask(10249, "/configz")[1])["lbagent"]["node-name"] == NAME
    here["endpoints"][0]["conditions"] = {"ready": False, "serving": True, "terminating": True}
    cluster.set(service("web", "10.96.0.10", **local), here)
    wait_for(lambda: ask(31000, "/", "10.7.0.1")[0] == 503, "no endpoint that is ready", 20)
    cluster.stop()
    assert ask(10256, "/healthz")[0] == 200, "an API server that is away does not concern the node"


def test_a_watch_that_stops_silently_is_found(cluster: Cluster) -> None:
    """The server sends bookmarks and no event: nothing shows that the agent serves a stale backend, until it lists again."""
    cluster.start()
    agent = cluster.agent
    agent.arguments += ["--verify-every", "0"]
    agent.start()
    cluster.until("ADDR=10.96.0.10:80/TCP")
    done = agent.cli("verify", "--api", "-o", "json")
    assert json.loads(done.stdout) == []

    Path(f"{cluster.objects}.deaf").write_text("EndpointSlice")
    cluster.set(service("web", "10.96.0.10"), endpoints("web", "10.7.0.3"), service("seen", "10.96.0.12"))
    cluster.until("ADDR=10.96.0.12:80/TCP")  # the watch of Services lives
    assert agent.cli("verify").stdout == ""  # the maps are what the agent wrote
    done = agent.cli("verify", "--api", "-o", "json", check=False)
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert {(row["renderer"], row["service"], row["frontend"], row["kind"], row["detail"]) for row in rows} == {
        ("bpf", "box/web", "10.96.0.10:80/TCP", "missing", "backend 10.7.0.3:8080/TCP"),
        ("bpf", "box/web", "10.96.0.10:80/TCP", "stale", "backend 10.7.0.2:8080/TCP"),
    }
    assert not any(row["repaired"] for row in rows)
    assert "10.7.0.2:8080" in "\n".join(agent.dump())  # nothing was repaired

    done = agent.cli("verify", "--api", "--repair")
    assert done.stdout.count("(repaired)") == 2
    assert "10.7.0.3:8080" in "\n".join(agent.dump())
    assert "10.7.0.2:8080" not in "\n".join(agent.dump())

    cluster.stop()
    done = agent.cli("verify", "--api", check=False)
    assert done.returncode == 6
    assert done.stderr.startswith("error: the API server does not list its objects")
    assert done.stderr.count("\n") == 1


def test_the_agent_finds_and_repairs_it_by_itself(cluster: Cluster) -> None:
    cluster.start()
    agent = cluster.agent
    agent.arguments += ["--verify-every", "1"]
    agent.start()
    cluster.until("ADDR=10.96.0.10:80/TCP")
    Path(f"{cluster.objects}.deaf").write_text("EndpointSlice")
    cluster.set(service("web", "10.96.0.10"), endpoints("web", "10.7.0.3"))
    wait_for(lambda: "10.7.0.3:8080" in "\n".join(agent.dump()), "the backend that was missed", 30)
    wait_for(lambda: "objects-missed" in agent.cli("status", "-o", "json", check=False).stdout, "a condition", 10)
    assert "objects were missed and are listed again" in agent.tail(60)


def test_nftables_is_compared_with_a_second_list(cluster: Cluster) -> None:
    cluster.start()
    agent = cluster.agent
    agent.arguments += ["--verify-every", "0", "--renderer", "nftables"]
    agent.start()
    assert json.loads(agent.cli("verify", "--api", "-o", "json").stdout) == []
    Path(f"{cluster.objects}.deaf").write_text("EndpointSlice")
    cluster.set(service("web", "10.96.0.10"), endpoints("web", "10.7.0.2", "10.7.0.3"))
    missing = (1, "nftables: box/web 10.96.0.10:80/TCP: missing: backend 10.7.0.3:8080/TCP\n")

    def is_found() -> bool:  # once the server has read its objects again
        done = agent.cli("verify", "--api", check=False)
        return (done.returncode, done.stdout) == missing

    wait_for(is_found, "the difference")
    assert 'lbagent_verify_differences{renderer="nftables"} 1\n' in agent.cli("metrics").stdout
    assert agent.cli("verify", "--api", "--repair").returncode == 0
    assert "10.7.0.3" in agent.cli("backend", "list").stdout
    assert 'lbagent_verify_differences{renderer="nftables"} 0\n' in agent.cli("metrics").stdout
