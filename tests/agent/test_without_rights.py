"""`lbagent agent --renderer none` as a user without rights: everything but the data plane, and nothing in the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import endpoints, service, web
from tests.lab.agent import program
from tests.lab.netns import wait_for
from tests.lab.ports import own_port

NOBODY = 65534
DAC_READ_SEARCH = 1 << 2  # the checkout may be in a folder of root's own; reading is all that it allows


def as_nobody(*words: str) -> list[str]:
    """Return how lbagent is run as a user without rights."""
    if os.geteuid():
        return [*program(), *words]
    caps = "-all,+dac_read_search"
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--inh-caps={caps}", f"--ambient-caps={caps}"]
    return ["setpriv", *user, *program(), *words]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Unprivileged:
    """An agent over a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifests, self.run_dir = folder / "manifests", folder / "run"
        self.socket, self.bpffs = self.run_dir / "agent.sock", self.run_dir / "bpffs"
        self.healthz, self.metrics_port = own_port(), own_port()
        self.log = folder / "log"
        self.process: subprocess.Popen[str] | None = None
        for path in (self.manifests, self.run_dir):
            path.mkdir()
        if not os.geteuid():
            os.chown(self.run_dir, NOBODY, NOBODY)

    def write(self, name: str, *objects: dict[str, Any]) -> None:
        draft = self.manifests / f".{name}.new"
        draft.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        draft.rename(self.manifests / name)

    def argv(self, *renderers: str) -> list[str]:
        chosen = [word for name in renderers for word in ("--renderer", name)]
        return as_nobody(
            "agent", "--manifests", str(self.manifests), "--socket", str(self.socket), "--bpffs", str(self.bpffs),
            "--state-dir", str(self.run_dir / "state"), "--node-ip", "192.0.2.1", "--node-name", "me",
            "--healthz-bind-address", f"127.0.0.1:{self.healthz}", "--metrics-address", f"127.0.0.1:{self.metrics_port}",
            *chosen,
        )  # fmt: skip

    def start(self, *renderers: str) -> None:
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.argv(*renderers), stdout=log, stderr=log, text=True)
        wait_for(lambda: self.ended() or self.socket.exists(), "the agent", 60)
        assert not self.ended(), self.log.read_text()
        self.cli("status", "--wait", "60s")

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def failed_start(self, *renderers: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(*renderers), capture_output=True, text=True, timeout=60, check=False)

    def cli(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LBAGENT_SOCKET": str(self.socket)}
        argv = as_nobody(*words)
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=check)

    def json(self, *words: str) -> Any:
        return json.loads(self.cli(*words, "-o", "json").stdout)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@pytest.fixture
def agent() -> Iterator[Unprivileged]:
    folder = Path(tempfile.mkdtemp(prefix="lbagent-"))  # pytest's own folders are root's alone
    folder.chmod(0o755)
    agent = Unprivileged(folder)
    try:
        yield agent
    finally:
        if agent.process is not None and not agent.ended():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.stop()
            agent.process.kill()
            agent.process.wait()
        shutil.rmtree(folder)


def test_sources_resolve_api_health_and_metrics_without_rights(agent: Unprivileged) -> None:
    agent.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    agent.start("none")
    assert agent.process is not None
    status = Path(f"/proc/{agent.process.pid}/status").read_text()
    caps = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    assert int(caps, 16) & ~DAC_READ_SEARCH == 0

    found = agent.json("status")
    assert (found["ready"], found["services"], found["backends"], found["attach"]) == (True, 1, 2, "")
    assert [(each["name"], each["ready"], each["in_sync"]) for each in found["targets"]] == [("none", True, True)]
    assert (found["devices"], found["maps"], found["conditions"], found["problems"]) == ([], [], [], [])
    assert "ready" in agent.cli("status").stdout
    (row,) = agent.json("svc", "list")
    assert (row["frontend"], row["id"], len(row["backends"])) == ("10.96.0.10:80/TCP", 1, 2)
    assert [each["address"] for each in agent.json("backend", "list")] == ["10.7.0.5:8080/TCP", "10.7.0.6:8080/TCP"]
    plan = agent.cli("plan", "-f", str(agent.manifests), "--node", "me").stdout
    assert "SVC: ID=1 ADDR=10.96.0.10:80/TCP SLOT=0" in plan

    assert get(agent.healthz, "/readyz") == (200, '{"ready":true}\n')
    assert get(agent.healthz, "/healthz")[0] == 200
    code, text = get(agent.metrics_port, "/metrics")
    assert code == 200
    for line in ("lbagent_ready 1", "lbagent_services 1", 'lbagent_backends{state="active"} 2'):
        assert line in text.splitlines()
    assert text == agent.cli("metrics").stdout or "lbagent_ready 1" in agent.cli("metrics").stdout

    agent.write("more.json", service("more", "10.96.0.11"), endpoints("more", "10.7.0.7", "10.7.0.8"))
    wait_for(lambda: len(agent.json("svc", "list")) == 2, "the change of the folder")
    agent.cli("backend", "set-state", "10.7.0.7:8080/TCP", "quarantined")
    agent.cli("backend", "drain", "10.7.0.5:8080/TCP", "--timeout", "30s")  # it has no flow: that is counted twice
    states = {row["address"]: row["state"] for row in agent.json("backend", "list")}
    assert (states["10.7.0.5:8080/TCP"], states["10.7.0.7:8080/TCP"]) == ("maintenance", "quarantined")
    agent.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "configuration applied" in agent.log.read_text(), "the reload")
    assert agent.json("status")["ready"]
    assert agent.stop() == 0
    assert not agent.socket.exists()
    assert not agent.bpffs.exists()


def test_record_beside_none_gets_each_change_in_order(agent: Unprivileged) -> None:
    calls = agent.run_dir / "calls"
    agent.write("web.json", *web("10.7.0.5"))
    agent.start("none", f"record={calls}")
    found = agent.json("status")
    assert [each["name"] for each in found["targets"]] == ["none", "record"]
    agent.write("web.json", *web("10.7.0.5", "10.7.0.6"))
    wait_for(lambda: "update_service" in calls.read_text(), "the update")
    assert agent.stop() == 0
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [line["call"] for line in lines] == ["resync", "flush", "update_service", "flush", "close"]
    assert lines[0]["node_ips"] == ["192.0.2.1"]
    assert [each["id"] for each in lines[0]["services"]] == ["box/web"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("iptables",), 2, "unknown renderer 'iptables'; there are bpf, nftables, record, none"),
        (("record",), 2, "name the file of the calls"),
        (("nftables",), 77, "--renderer nftables is not available"),
        (("auto",), 77, "--renderer auto is not available: bpf: "),
        (("bpf", "nftables"), 2, "bpf and nftables would both translate IPv4"),
    ],
)
def test_a_renderer_that_cannot_be_used(agent: Unprivileged, words: tuple[str, ...], code: int, text: str) -> None:
    done = agent.failed_start(*words)
    assert done.returncode == code
    assert text in done.stderr.strip().splitlines()[-1]


def test_what_needs_bpf_is_refused(agent: Unprivileged, tmp_path: Path) -> None:
    pools = tmp_path / "pools.yaml"
    pools.write_text("pools: [{name: a, addresses: [192.0.2.0/28]}]\n")
    done = subprocess.run(
        [*agent.argv("none"), "--announce", str(pools)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--announce needs --renderer bpf" in done.stderr


def test_a_data_plane_that_is_not_used_is_not_imported() -> None:
    code = """
import sys
import lbagent.agent.app
from lbagent.config import Config
from lbagent.targets.renderers import data_planes
data_planes(Config(renderer=("none",)))
unused = ("lbagent.bpf", "lbagent.maps", "lbagent.targets.bpf", "lbagent.targets.record", "lbagent.agent.announcing")
print(sorted(name for name in sys.modules if name.startswith(unused)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
