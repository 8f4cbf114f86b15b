"""`lbagent monitor` beside real traffic, while agents die, start again and leave."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.cluster import VIP4, VIP6, WEB, Cluster
from tests.e2e.test_flows import ADDRESS, shown
from tests.lab import traffic
from tests.lab.netns import wait_for
from tests.lab.traffic import Talkers

pytestmark = pytest.mark.early

KEYS = (
    "time", "reason", "verdict", "device", "hook", "protocol", "source", "destination", "flags", "length", "service", "frontend",
    "backend", "snat", "generation", "cpu",
)  # fmt: skip
CLOSED = 81  # no Service has this port


class Monitor:
    """A running monitor: its lines of stdout and stderr as they come."""

    def __init__(self, cluster: Cluster, *words: str) -> None:
        self.process = cluster.agent.popen(
            "monitor", *words, "-o", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.said: list[str] = []
        self._threads = [
            threading.Thread(target=self._follow, args=each)
            for each in ((self.process.stdout, self.lines.put), (self.process.stderr, self.said.append))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _follow(stream: Any, put: Callable[[str], object]) -> None:
        for line in stream:
            put(line)

    def next(self) -> dict[str, Any]:
        """Return the next event."""
        row = json.loads(self.lines.get(timeout=20))
        assert isinstance(row, dict)
        assert tuple(row) == KEYS
        return row

    def wait_said(self, text: str) -> None:
        """Wait for a sentence on stderr."""
        wait_for(lambda: any(text in line for line in self.said), f"{text!r} on stderr", 20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()


@contextmanager
def monitoring(cluster: Cluster, *words: str) -> Iterator[Monitor]:
    """Run a monitor that has begun to read: a refusal is shown."""
    with_probe = Monitor(cluster, *words)
    try:
        yield with_probe
    finally:
        with_probe.close()


def connect(cluster: Cluster, vip: str, port: int = 80) -> tuple[str, str]:
    """Open a connection and ask; return the client's address and the name of the backend, '' if it was refused."""
    with cluster.client.entered(), socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET) as sock:
        sock.settimeout(10)
        sock.bind(("", 0))
        with suppress(ConnectionRefusedError):
            sock.connect((vip, port))
            return shown(*sock.getsockname()[:2]), traffic._answer(traffic.request(sock)).backend
        return "", ""


def begin(monitor: Monitor, cluster: Cluster, vip: str = VIP4) -> None:
    """Wait until the monitor shows what happens now, and has shown all of it."""
    while True:
        connect(cluster, vip, CLOSED)
        with suppress(queue.Empty):
            monitor.lines.get(timeout=1)
            break
    with suppress(queue.Empty):
        while True:
            monitor.lines.get(timeout=1)


def test_new_flows_and_refusals_are_shown_as_sockets_saw_them(served: Cluster) -> None:
    with (
        monitoring(served, "--event-sample", "1", "--client", "0.0.0.0/0") as four,
        monitoring(served, "--event-sample", "1", "-6") as six,
    ):
        begin(four, served)
        for monitor, vip, family in ((four, VIP4, 0), (six, VIP6, 1)):
            if monitor is six:
                begin(six, served, VIP6)
            before = time.time()
            client, name = connect(served, vip)
            row = monitor.next()
            backend = shown(ADDRESS[name][family], 8080)
            assert row["source"] == client or client.startswith("[::]")
            facts = {
                key: row[key]
                for key in ("protocol", "destination", "flags", "service", "frontend", "backend", "device")
            }
            assert facts == {
                "protocol": "TCP", "destination": shown(vip, 80), "flags": "S", "service": "e2e/web",
                "frontend": f"{shown(vip, 80)}/TCP", "backend": f"{backend}/TCP", "device": "wan",
            }  # fmt: skip
            assert (
                row["hook"] == ("tc_ingress" if served.agent.attach == "tc" else "xdp") or row["hook"] == "tc_after_xdp"
            )
            assert (row["verdict"], row["reason"]) == (
                ("local", "fwd_local") if name == "b3" else ("forward", "fwd_new")
            )
            assert (row["snat"] is None) == (name == "b3")
            assert before - 1 <= datetime.fromisoformat(row["time"]).timestamp() <= time.time() + 1
            assert row["generation"] == served.agent.api.status()["generation"]
            connect(served, vip, CLOSED)
            row = monitor.next()
            assert (row["verdict"], row["reason"]) == ("answer", "reject_undefined_port")
            assert row["backend"] is row["snat"] is row["service"] is None
            assert row["frontend"] == f"{shown(vip, CLOSED)}/TCP"


def test_an_agent_that_dies_and_comes_back(served: Cluster) -> None:
    """Events go on without it; what happens is reported once each."""
    with monitoring(served, "--event-sample", "1", "--frontend", VIP4) as monitor:
        begin(monitor, served)
        served.agent.kill()
        monitor.wait_said("the agent does not answer")
        for _ in range(3):
            connect(served, VIP4)
            assert monitor.next()["service"] == "e2e/web"
        served.agent.start()
        monitor.wait_said("the agent answers again")
        connect(served, VIP4)
        assert monitor.next()["service"] == "e2e/web"
        assert len(monitor.said) == 2, monitor.said


def test_words_select_events(served: Cluster) -> None:
    for vip in WEB:
        connect(served, vip, CLOSED)
        connect(served, vip)

    def shown_of(*words: str) -> list[dict[str, Any]]:
        text = served.agent.cli("monitor", *words, "-o", "json").stdout
        return [json.loads(line) for line in text.splitlines()]

    (row,) = shown_of("--last", "1", "--count", "1", "--verdict", "answer,drop", "-4")
    assert row["destination"] == shown(VIP4, CLOSED)
    (row,) = shown_of("--last", "1", "--count", "1", "--reason", "reject_undefined_port", "-6")
    assert row["destination"] == shown(VIP6, CLOSED)
    (row,) = shown_of("--last", "1", "--count", "1", "--verdict", "forward,local", "--service", "e2e/web", "-6")
    assert row["destination"] == shown(VIP6, 80)
    backend = row["backend"]
    (row,) = shown_of("--last", "1", "--count", "1", "--event-sample", "1", "--backend", backend)
    assert row["backend"] == backend
    rows = shown_of("--last", "3", "--count", "3", "--event-sample", "0")
    assert {row["verdict"] for row in rows} <= {"answer", "drop", "pass"}


@pytest.mark.parametrize(("vip", "family"), [(VIP4, "-4"), (VIP6, "-6")])
def test_events_by_what_their_flows_are_now(served: Cluster, vip: str, family: str) -> None:
    """An open connection is established, one that was closed is closing; what was refused has no flow."""

    def clients(*words: str, first_s: float = 20) -> set[str]:
        found: set[str] = set()
        last = ("--last", "40", "--event-sample", "1", family)
        with monitoring(served, *last, *words) as monitor, suppress(queue.Empty):
            while True:
                found.add(json.loads(monitor.lines.get(timeout=2 if found else first_s))["source"])
        return found

    closed, _ = connect(served, vip)
    connect(served, vip, CLOSED)
    talkers = Talkers(served.client, vip, 80, 3)
    try:
        talkers.ask()
        listed = {flow["client"] for flow in served.agent.json("flow", "list", family, "--state", "established")}
        found = clients("--state", "established")
        assert len(found) >= 3
        assert found <= listed
        assert found < clients()
        assert closed in clients("--state", "closing") - found
        assert clients("--idle-over", "1h", first_s=2) == set()
        idle = ("--idle-over", "6s", "--state", "established")
        wait_for(lambda: len(clients(*idle) & found) >= 3, "idle connections", 40)
        wait_for(lambda: talkers.ask() and not clients(*idle) & found, "connections that are not idle", 60)
    finally:
        talkers.close()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--reason", "fwd_new,nonsense"), 2, "--reason nonsense"),
        (("--verdict", "refused"), 2, "--verdict refused"),
        (("--client", "10.0.0.0/8", "-6"), 2, "no flow has both"),
        (("--state", "old"), 2, "--state"),
        (("--idle-over", "soon"), 2, "--idle-over"),
    ],
)
def test_bad_words(served: Cluster, words: tuple[str, ...], code: int, text: str) -> None:
    done = served.agent.cli("monitor", *words, "--count", "1", check=False)
    assert done.returncode == code
    assert text in done.stderr


def test_another_number_of_events_and_none(fresh: Callable[..., Cluster]) -> None:
    """A running monitor follows the rings of agents with another --events, and waits while there are none."""
    cluster = fresh("xdp", "--events", "1024")
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    with monitoring(cluster, "--event-sample", "1", "--frontend", VIP4) as monitor:
        begin(monitor, cluster)
        for events in ("4096", "0", "64"):
            cluster.agent.stop()
            cluster.agent.arguments = ["--events", events]
            cluster.agent.start()
            connect(cluster, VIP4)
            if events != "0":
                assert monitor.next()["service"] == "e2e/web"
                continue
            done = cluster.agent.cli("monitor", "--count", "1", check=False)
            assert done.returncode == 3
            assert "--events 0" in done.stderr
            metrics = cluster.agent.api.metrics()
            assert "\nlbagent_events_total 0\n" in metrics
        metrics = dict(line.rsplit(" ", 1) for line in cluster.agent.api.metrics().splitlines() if line[0] != "#")
        assert int(metrics["lbagent_events_total"]) >= 1
        assert int(metrics["lbagent_events_lost_total"]) == 0
        assert monitor.process.poll() is None


def test_refusals_beyond_the_rate_are_reported(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("xdp", "--event-rate", "1")
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    with monitoring(cluster, "-4") as monitor:
        begin(monitor, cluster)
        for _ in range(20):
            connect(cluster, VIP4, CLOSED)
        monitor.wait_said("--event-rate")
        wait_for(lambda: "lbagent_events_lost_total 0\n" not in cluster.agent.api.metrics(), "a lost event")
