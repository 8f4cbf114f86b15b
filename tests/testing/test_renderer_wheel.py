"""Renderers from wheels: `examples/renderer` and broken ones, built and installed by pip without a network, in an agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.agent import program
from tests.lab.netns import wait_for

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "renderer"
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1.0"
[project.entry-points."lbagent.renderers"]
{renderer} = "{module}:factory"
[tool.hatch.build.targets.wheel]
include = ["{module}.py"]
"""
BROKEN = {
    "lbagent-raising": ("raising", "raise RuntimeError('it never worked')"),
    "lbagent-newer": ("newer", "def factory(settings): return None\nfactory.api_version = 99"),
    "lbagent-twice-a": ("twice", "def factory(settings): return None"),
    "lbagent-twice-b": ("twice", "def factory(settings): return None"),
    "lbagent-hanging": ("hanging", "import time\ndef factory(settings): time.sleep(3600)"),
    "lbagent-nonsense": ("nonsense", "def factory(settings): return 'nonsense'"),
}

pytestmark = pytest.mark.slow


def install(source: Path, folder: Path) -> None:
    """Build a wheel of a folder, and install it, as a user does."""
    wheels = folder.with_name(f"{source.name}-wheel")
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--no-cache-dir"]
    build = [*command, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(wheels), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*command, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all the plug-ins are installed."""
    folder = tmp_path_factory.mktemp("plug-ins") / "site"
    source = folder.with_name("routes")
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    install(source, folder)
    for name, (renderer, code) in BROKEN.items():
        source, module = folder.with_name(name), name.replace("-", "_")
        source.mkdir()
        (source / "pyproject.toml").write_text(PYPROJECT.format(name=name, renderer=renderer, module=module))
        (source / f"{module}.py").write_text(code)
        install(source, folder)
    return folder


def environment(installed: Path) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}


def lbagent(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*program(), *words]
    return subprocess.run(argv, env=environment(installed), capture_output=True, text=True, timeout=60)


def test_renderers_names_each_with_its_reason(installed: Path) -> None:
    (installed / "lbagent_hanging.py").write_text("def factory(settings): raise OSError('no such device')")
    done = lbagent(installed, "renderers", "-o", "json")
    assert done.returncode == 0, done.stderr
    found = {(row["name"], row["from"]): row for row in json.loads(done.stdout)}
    routes = {
        "name": "routes",
        "from": "lbagent-routes",
        "available": True,
        "reason": "",
        "capabilities": ["ipv6", "local_only"],
    }
    assert found["routes", "lbagent-routes"] == routes
    reasons = {
        ("raising", "lbagent-raising"): "cannot be loaded: RuntimeError: it never worked",
        ("newer", "lbagent-newer"): "needs version 99 of the renderer API",
        (
            "twice",
            "lbagent-twice-a",
        ): "installed twice: lbagent_twice_a:factory of lbagent-twice-a, lbagent_twice_b:factory of",
        ("twice", "lbagent-twice-b"): "installed twice: ",
        ("hanging", "lbagent-hanging"): "cannot be made: OSError: no such device",
        ("nonsense", "lbagent-nonsense"): "is a str without add_service",
    }
    for key, reason in reasons.items():
        assert not found[key]["available"]
        assert reason in found[key]["reason"], found[key]
    assert [row["name"] for row in json.loads(done.stdout)][:4] == ["bpf", "nftables", "record", "none"]
    (installed / "lbagent_hanging.py").write_text(BROKEN["lbagent-hanging"][1])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("routes=tables=1",), 2, "--renderer routes: unknown setting 'tables'; there are table and protocol"),
        (
            ("raising",),
            77,
            "--renderer raising is not available: lbagent_raising:factory of lbagent-raising cannot be loaded",
        ),
        (("twice",), 77, "--renderer twice is not available: installed twice"),
        (("nothing",), 2, "unknown renderer 'nothing'; there are bpf, nftables, record, none, hanging, newer, "),
    ],
)
def test_one_that_cannot_be_used_alone(
    installed: Path, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    (tmp_path / "manifests").mkdir()
    chosen = [word for name in words for word in ("--renderer", name)]
    folders = (
        "--manifests",
        str(tmp_path / "manifests"),
        "--state-dir",
        str(tmp_path),
        "--socket",
        str(tmp_path / "s"),
    )
    done = lbagent(installed, "agent", *folders, *chosen)
    assert done.returncode == code, done.stderr
    assert text in done.stderr.strip().splitlines()[-1]


@pytest.mark.root
def test_the_example_passes_the_suites(installed: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "test_routes_renderer.py", tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        ["unshare", "--net", *command, str(tmp_path)],
        env=environment(installed),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed" in done.stdout


class RoutesAgent:
    """An agent with `none` and plug-ins in a namespace of its own, with a device to Pods."""

    def __init__(self, folder: Path, installed: Path, *renderers: str) -> None:
        self.folder, self.installed = folder, installed
        self.manifests, self.socket = folder / "manifests", folder / "agent.sock"
        self.manifests.mkdir(exist_ok=True)
        chosen = [word for name in renderers for word in ("--renderer", name)]
        self.argv = [
            *program(), "agent", "--manifests", str(self.manifests), "--socket", str(self.socket), "--state-dir", str(folder / "state"),
            "--node-name", "node-a", "--node-ip", "2001:db8::1", *chosen,
        ]  # fmt: skip
        self.process: subprocess.Popen[str] | None = None
        self.pid = 0

    def start(self) -> None:
        links = "ip link add pods0 type veth peer name pods1; ip link set pods0 up; ip link set pods1 up"
        script = f"{links}; ip -6 route add fd00:244::/64 dev pods0; sleep 600"
        if not self.pid:
            self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", script], process_group=0)
            self.pid = self.holder.pid
            wait_for(lambda: "fd00:244::/64" in self.ip("-6", "route"), "the namespace")
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                self.inside(*self.argv), env=environment(self.installed), stdout=log, stderr=log, text=True
            )
        wait_for(lambda: self.cli("status").returncode == 0, "the agent", 60)

    def inside(self, *argv: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *argv]

    def ip(self, *words: str) -> str:
        return subprocess.run(self.inside("ip", *words), capture_output=True, text=True, check=False).stdout

    def routes(self) -> list[str]:
        return [line.split(" dev ")[0] for line in self.ip("-6", "route", "show", "proto", "200").splitlines()]

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        return lbagent(self.installed, *words, "--socket", str(self.socket))

    def targets(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in json.loads(self.cli("status", "-o", "json").stdout)["targets"]}

    def write(self, name: str, *objects: dict[str, Any]) -> None:
        draft = self.manifests / f".{name}.new"
        draft.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        draft.rename(self.manifests / name)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.pid:
            os.killpg(self.holder.pid, signal.SIGKILL)
            self.holder.wait()


@pytest.fixture
def agent(tmp_path: Path, installed: Path) -> Iterator[RoutesAgent]:
    made = RoutesAgent(tmp_path, installed, "none", "routes", "raising", "twice", "newer", "nonsense")
    try:
        yield made
    finally:
        made.end()


def service(name: str, vip: str) -> dict[str, Any]:
    spec = {"clusterIP": vip, "clusterIPs": [vip], "ipFamilies": ["IPv6"], "ports": [{"name": "http", "port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "box"}, "spec": spec}


def endpoints(name: str, *addresses: str, node: str = "node-a") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-x", "namespace": "box", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv6",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [each], "nodeName": node, "conditions": {"ready": True}} for each in addresses],
    }


@pytest.mark.root
def test_an_agent_with_plug_ins(agent: RoutesAgent) -> None:
    agent.write("web.json", service("web", "fd00:96::1"), endpoints("web", "fd00:244::5"))
    agent.write("far.json", service("far", "fd00:96::2"), endpoints("far", "fd00:244:1::5", node="node-b"))
    agent.start()
    wait_for(lambda: agent.routes() == ["fd00:96::1 via fd00:244::5"], "the route")
    targets = agent.targets()
    assert (targets["none"]["ready"], targets["routes"]["in_sync"], targets["routes"]["error"]) == (True, True, "")
    errors = {name: target["error"] for name, target in targets.items() if target["error"]}
    assert errors.keys() == {"raising", "twice", "newer", "nonsense"}
    assert "it never worked" in errors["raising"]
    assert "installed twice" in errors["twice"]
    assert "needs version 99" in errors["newer"]
    assert "target raising: " in agent.cli("status").stdout

    agent.write("far.json", service("far", "fd00:96::2"), endpoints("far", "fd00:244::7"))
    both = ["fd00:96::1 via fd00:244::5", "fd00:96::2 via fd00:244::7"]
    wait_for(lambda: agent.routes() == both, "the second route")
    assert agent.process is not None
    agent.process.kill()
    agent.process.wait()
    assert agent.routes() == both, "what is in force stays"
    (agent.manifests / "far.json").unlink()
    agent.start()
    wait_for(lambda: agent.routes() == both[:1], "what went meanwhile is gone")
    agent.ip("-6", "route", "del", "fd00:244::/64")
    agent.write("far.json", service("far", "fd00:96::2"), endpoints("far", "fd00:244::7"))
    wait_for(lambda: "No route to host" in agent.targets()["routes"]["error"], "the kernel's refusal")
    agent.ip("-6", "route", "add", "fd00:244::/64", "dev", "pods0")
    wait_for(lambda: agent.routes() == both, "the route, by a later try")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(20) == 0
    assert agent.routes() == both
