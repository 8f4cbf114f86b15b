"""The real agent as a process in the node's namespace, and the real command line against it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lbagent.agent.removal import cleanup
from lbagent.api.client import AgentClient
from lbagent.config import Config
from lbagent.errors import LbError
from lbagent.maps.dump import dump
from lbagent.maps.kernel_maps import KernelMaps
from tests.lab.netns import LabError, Namespace, wait_for
from tests.lab.topology import ROOT, Lab, end

START_TIMEOUT_S = 120  # the verifier takes a minute on a busy machine


# Commands that print the agent's answer with -o json (tested in tests/cli): polls by processes took a tenth of all tests' time.
ASKED: dict[tuple[str, ...], Callable[[AgentClient], Any]] = {
    ("status",): AgentClient.status,
    ("svc", "list"): AgentClient.services,
    ("backend", "list"): AgentClient.backends,
    ("vip", "list"): AgentClient.vips,
    ("bgp", "peers"): AgentClient.bgp_peers,
}


def program() -> list[str]:
    """Return the command line of lbagent: the installed command, else the module."""
    script = Path(sys.executable).with_name("lbagent")
    return [str(script)] if script.exists() else [sys.executable, "-m", "lbagent"]


class Agent:
    """One agent of a laboratory; it can be killed and restarted."""

    def __init__(self, lab: Lab, manifests: Path, *, attach: str = "xdp", arguments: Sequence[str] = ()) -> None:
        """Prepare it: devices wan, lan1, lan2 (NICs) and pods behind pod*."""
        self.lab, self.manifests, self.attach, self.arguments = lab, manifests, attach, list(arguments)
        self.process: subprocess.Popen[str] | None = None
        self.log = lab.folder / "agent.log"
        self.devices = ["wan", "lan1", "lan2"]
        lab.closing.callback(self.remove)

    def argv(self) -> list[str]:
        """Return the command line."""
        devices = [word for device in self.devices for word in ("--device", device)]
        return [
            *program(), "agent", "--manifests", str(self.manifests), *devices, "--pod-device", "pod*", "--attach", self.attach,
            "--node-name", "demo-node", "--bpffs", str(self.lab.bpffs), "--socket", str(self.lab.socket),
            "--state-dir", str(self.lab.folder / "state"), *self.arguments,
        ]  # fmt: skip

    def start(self, *, wait: bool = True, env: dict[str, str] | None = None, module: str = "") -> None:
        """Start it; with wait, return when the first full sync is in the kernel. `module` runs instead of lbagent's."""
        argv = [sys.executable, "-m", module, *self.argv()[len(program()) :]] if module else self.argv()
        with self.log.open("a") as log:
            self.process = self.lab.node.popen(
                argv, stderr=log, stdout=log, env={**os.environ, **(env or {})}, cwd=ROOT
            )
        if wait:
            self.wait_ready()

    def ended_or_ready(self) -> int | None:
        """Wait until it has ended (its exit code) or is ready (None)."""
        assert self.process is not None
        process = self.process

        def seen() -> bool:
            if process.poll() is not None:
                return True
            with contextlib.suppress(LbError):
                return bool(self.api.status()["ready"] and self.api.status()["pid"] == process.pid)
            return False

        try:
            wait_for(seen, "the agent's end or readiness", START_TIMEOUT_S)
        except LabError as error:
            raise LabError(f"{error}\n{self.tail()}") from None
        return process.poll()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process is not None
        return self.process.pid

    def wait_ready(self) -> None:
        """Wait for the first full sync; after a time-out LabError has the end of the log."""
        code = self.ended_or_ready()
        if code is not None:
            raise LabError(f"the agent ended with {code}\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        """Return the end of the log."""
        return "\n".join(self.log.read_text().splitlines()[-lines:]) if self.log.exists() else ""

    def kill(self) -> None:
        """Kill it with SIGKILL: no chance to clean up."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Stop it with SIGTERM and return its exit code; the datapath keeps serving."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    def cli(self, *words: str, check: bool = True, space: Namespace | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line against this agent (and its pins), in the node's namespace or another one."""
        argv, env = self._command(words)
        done = (space or self.lab.node).run(argv, env=env)
        if check and done.returncode:
            raise LabError(
                f"lbagent {' '.join(words)}: exit {done.returncode}: {done.stderr or done.stdout}\n{self.tail()}"
            )
        return done

    def popen(self, *words: str, **kwargs: Any) -> subprocess.Popen[str]:
        """Start a command of the command line against this agent in the node's namespace."""
        argv, env = self._command(words)
        return self.lab.node.popen(argv, env=env, **kwargs)

    def _command(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the argv of a command and its environment."""
        offline = (
            ["--bpffs", str(self.lab.bpffs)]
            if words[0] in ("capture", "cleanup", "explain", "flow", "map", "monitor", "record")
            else []
        )
        if words[0] in ("capture", "cleanup", "explain", "flow", "monitor", "record"):
            offline += ["--state-dir", str(self.lab.folder / "state")]
        return [*program(), *words, *offline], {**os.environ, "LBAGENT_SOCKET": str(self.lab.socket)}

    @property
    def api(self) -> AgentClient:
        """The agent's socket, without a process for each request."""
        return AgentClient(str(self.lab.socket))

    def json(self, *words: str) -> Any:
        """Return a command's output with -o json. A command that only prints an answer of the agent runs without a process."""
        if words in ASKED:
            return ASKED[words](self.api)
        return json.loads(self.cli(*words, "-o", "json").stdout)

    def dump(self) -> list[str]:
        """Return `map dump`, line by line."""
        with KernelMaps.open(str(self.lab.bpffs), create=False) as maps:
            return dump(maps)

    def remove(self) -> None:
        """Stop it and remove programs, links and pins (at the end of the laboratory)."""
        if self.process is not None:
            end(self.process)
        if self.lab.bpffs.exists():
            with (
                contextlib.suppress(LbError, LabError),
                ThreadPoolExecutor(1) as own,
            ):  # a test may have an event loop in this thread
                own.submit(self._cleanup).result()
            shutil.rmtree(self.lab.bpffs, ignore_errors=True)

    def _cleanup(self) -> None:
        self.lab.node.call(cleanup, Config(bpffs=str(self.lab.bpffs), state_dir=str(self.lab.folder / "state")))


class KubeAgent(Agent):
    """An agent with the laboratory's kubeconfig in place of a manifest folder."""

    name = "demo-node"

    def argv(self) -> list[str]:
        words = super().argv()
        at = words.index("--manifests")
        words[at : at + 2] = ["--kubeconfig", str(self.lab.folder / "kubeconfig")]
        words[words.index("--node-name") + 1] = self.name
        return words
