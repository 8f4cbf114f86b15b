"""`agent --shadow` beside another proxy, with real connections. The other proxy is an agent with nftables."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lbagent.targets.comparison.expected_backends import CHANGE_S
from tests.e2e.cluster import NODE, Cluster, routed_lab
from tests.lab import traffic
from tests.lab.agent import program
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]
NODE_IP = ("--node-ip", "10.77.0.1", "--node-ip", "fd77::1")


class Shadow:
    """The agent that only compares, with manifests of its own."""

    def __init__(self, made: Cluster) -> None:
        self.made, self.folder = made, made.lab.folder / "expected"
        self.folder.mkdir()
        self.socket = made.lab.folder / "shadow.sock"
        self.expected: tuple[str, ...] = ()

    def start(self) -> None:
        argv = [
            *program(), "agent", "--shadow", "--manifests", str(self.folder), "--pod-device", "pod*", "--node-name", NODE,
            "--socket", str(self.socket), "--state-dir", str(self.made.lab.folder / "shadow"), *NODE_IP,
        ]  # fmt: skip
        log = (self.made.lab.folder / "shadow.log").open("w")
        process = self.made.lab.node.popen(argv, stderr=log, stdout=log)

        def stop() -> None:
            process.terminate()
            process.wait(10)
            log.close()

        self.made.lab.closing.callback(stop)
        wait_for(lambda: self.status()["ready"], "the shadow agent", 20)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = self.made.lab.node.command([*program(), *words, "--socket", str(self.socket)])
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def status(self) -> dict[str, Any]:
        done = self.run("status", "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout or '{"ready": false}')
        return found

    def expect(self, *names: str) -> None:
        """Have these backends of web, for longer than connections count as `unknown`."""
        if self.expected != names:
            self.made.web(*names).write(self.folder)
            wait_for(lambda: self.backends("web") == 2 * len(names), "the backends of both families")
            time.sleep(CHANGE_S)
            self.expected = names

    def backends(self, name: str) -> int:
        """Return how many backends of a Service get new flows."""
        rows = json.loads(self.run("svc", "list", "-o", "json").stdout)
        return sum(each["selectable"] for row in rows if row["name"] == name for each in row["backends"])

    def report(self, *words: str) -> dict[str, Any]:
        done = self.run("shadow", "report", "-o", "json", *words)
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == int(found["differs"] > 0)
        return found

    def counted(self, number: int) -> dict[str, Any]:
        """Wait until so many connections are counted; return the report."""
        wait_for(lambda: self.report()["flows"] >= number, f"{number} connections", 10)
        return self.report()


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    with routed_lab("shadow-") as lab:
        made = Cluster(lab, "tc", ["--renderer", "nftables", *NODE_IP])
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


@pytest.fixture(scope="module")
def shadow(made: Cluster) -> Shadow:
    found = Shadow(made)
    made.web().write(found.folder)
    made.dns().write(found.folder)
    found.start()
    return found


@pytest.fixture(autouse=True)
def _quiet(made: Cluster, shadow: Shadow) -> None:
    """Both have the same manifests, for longer than changes count."""
    shadow.expect("b1", "b2", "b3")
    shadow.report("--reset")


def test_the_same_manifests_give_the_same_decisions(made: Cluster, shadow: Shadow) -> None:
    made.http(40)
    made.ask_dns(40)
    found = shadow.counted(80)
    assert (found["differs"], found["unknown"]) == (0, 0)
    assert found["same"] == found["flows"]
    assert {row["service"] for row in found["services"]} == {"e2e/web", "e2e/dns"}
    assert {row["frontend"] for row in found["services"]} >= {"10.96.0.10:80/TCP", "[fd00:96::10]:80/TCP"}
    assert 'lbagent_shadow_flows_total{result="same"}' in shadow.run("metrics").stdout


def test_a_backend_that_lbagent_would_not_choose_is_named(made: Cluster, shadow: Shadow) -> None:
    shadow.expect("b1", "b2")
    made.http(180)
    found = shadow.counted(180)
    assert 12 <= found["differs"] <= 120, "a third of the connections goes to b3"
    row = found["services"][0]
    local = made.lab.backends["b3"]
    assert {example["got"] for example in row["examples"]} <= {f"{local.ipv4}:8080/TCP", f"[{local.ipv6}]:8080/TCP"}
    assert all(len(example["expected"]) == 2 for example in row["examples"])
    text = shadow.run("shadow", "report")
    assert text.returncode == 1
    assert "another backend answers" in text.stdout


def test_the_node_itself_and_its_pods_are_compared_too(made: Cluster, shadow: Shadow) -> None:
    for space in (made.lab.node, made.lab.namespaces["b3"]):
        for _ in range(5):
            space.call(lambda: traffic.http_get("10.96.0.10", 80))
    found = shadow.counted(10)
    assert found["differs"] == 0
    assert found["same"] >= 10


def test_nothing_is_written(made: Cluster, shadow: Shadow) -> None:
    status = shadow.status()
    assert [target["name"] for target in status["targets"]] == ["shadow"]
    tables = subprocess.run(
        made.lab.node.command(["nft", "list", "tables"]), capture_output=True, text=True, check=True
    )
    assert tables.stdout.split() == ["table", "inet", "lbagent"], "that of the other proxy alone"


def test_without_shadow_there_is_no_report(made: Cluster) -> None:
    done = made.agent.cli("shadow", "report", check=False)
    assert done.returncode != 0
    assert "started without --shadow" in done.stderr
