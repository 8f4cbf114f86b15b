"""An agent on each node of a cluster, as a process: started, watched, killed and restarted. In Pods: daemonset_agents.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lbagent.api.client import AgentClient
from lbagent.defaults import DEFAULT_SOCKET
from lbagent.errors import LbError
from tests.conformance.node_cluster import NodeCluster
from tests.kube_api.cluster import CRD, RBAC
from tests.lab.agent import program
from tests.lab.netns import LabError, wait_for
from tests.lab.topology import ROOT

READY_S = 600  # the verifier takes minutes on a busy machine
ANSWER_S = 60
SAMPLE_S = 5.0
CGROUP = "/sys/fs/cgroup/unified"  # mount point of cgroup2 on a node of the cluster

ACCOUNT = ("kube-system", "lbagent")  # of RBAC
PAGE_KIB = os.sysconf("SC_PAGESIZE") // 1024
TICKS = os.sysconf("SC_CLK_TCK")


class NodeAgent:
    """The agent of one node, and the resources of all its processes. `questions`: commands that exit with 0 when all is well."""

    questions: Sequence[Sequence[str]] = (("verify",),)

    def __init__(self, cluster: NodeCluster, node: str, arguments: Sequence[str], log: Path) -> None:
        self.cluster, self.node, self.arguments, self.log = cluster, node, list(arguments), log
        self.outer: subprocess.Popen[bytes] | None = None  # the process that entered the namespaces and waits
        self.starts, self.peak_mib = 0, 0.0
        self._cpu_s: dict[int, float] = {}  # by process

    def start(self) -> None:
        argv = [*program(), "agent", "--node-name", self.node, *self.arguments]
        with self.log.open("ab") as log:
            self.outer = subprocess.Popen(self.cluster.on_node(self.node, argv), stdout=log, stderr=log, cwd=ROOT)
        self.starts += 1

    @property
    def pid(self) -> int | None:
        """The agent's process, a child of the one that entered the pid namespace; None if there is none."""
        if self.outer is None:
            return None
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
            return int(words[0]) if words else None
        return None

    @property
    def cpu_s(self) -> float:
        """Sampled processor time of all its processes."""
        return sum(self._cpu_s.values())

    def kill(self) -> None:
        """SIGKILL: no chance to clean up."""
        pid = self.pid
        if pid is not None and self.outer is not None:
            os.kill(pid, signal.SIGKILL)
            self.outer.wait(30)

    def sample(self) -> None:
        """Record memory and processor time."""
        pid = self.pid
        if pid is None:
            return
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            self._cpu_s[pid] = (int(fields[11]) + int(fields[12])) / TICKS
            self.peak_mib = max(self.peak_mib, int(fields[21]) * PAGE_KIB / 1024)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line on the node."""
        return self.cluster.run_on_node(self.node, [*program(), *words])

    def ready(self) -> bool:
        if self.outer is not None and self.outer.poll() is not None:
            tail = "\n".join(self.log.read_text().splitlines()[-20:])
            raise LabError(f"{self.node}: the agent ended with {self.outer.returncode}\n{tail}")
        return bool(self.status().get("ready"))

    def status(self) -> dict[str, Any]:
        """Return the agent's status, by its socket in the node's file system; empty if none answers."""
        pid = self.pid
        with contextlib.suppress(LbError):
            return AgentClient(f"/proc/{pid}/root{DEFAULT_SOCKET}").status() if pid else {}
        return {}

    def findings(self) -> list[str]:
        """Return the findings of status, verify and the log."""
        found = []
        status = self.status()
        if not status:
            found.append("no agent answers")
        elif not status["ready"]:
            found.append("not ready")
        found += [f"condition {each['name']}: {each['text']}" for each in status.get("conditions", [])]
        for words in self.questions:
            answer = self.ask(*words)
            if answer.returncode:
                found.append(f"{' '.join(words)}: {(answer.stdout + answer.stderr).strip()}")
        return found + [f"log, {count} times: {text}" for text, count in self.log_counts().most_common()]

    def log_counts(self) -> Counter[str]:
        """Count the log's warnings and errors by message (the log is JSON; other lines are from Python itself)."""
        counts: Counter[str] = Counter()
        for line in self.log.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                counts[line] += 1
                continue
            if entry.get("level") in ("warning", "error"):
                what = [entry[key] for key in ("level", "message", "condition", "error") if entry.get(key)]
                counts[": ".join(map(str, what))] += 1
        return counts


class ShadowAgent(NodeAgent):
    """An agent that compares kube-proxy's decisions with its own."""

    questions = (("shadow", "report"), ("verify", "--renderer", "kube-proxy"))


class NodeAgents:
    """The agents of all nodes."""

    make: type[NodeAgent] = NodeAgent
    serving: Sequence[str] = ("--socket-lb", "--cgroup", CGROUP)

    def __init__(self, cluster: NodeCluster, folder: Path, arguments: Sequence[str]) -> None:
        """Prepare them; `arguments` go to each agent."""
        self.cluster, self.folder, self.arguments = cluster, folder, list(arguments)
        self.config = folder / "agent.kubeconfig"
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self.notes: list[str] = []
        self.agents: Sequence[NodeAgent] = [self._agent(node, folder / f"{node}.log") for node in cluster.nodes]

    def _agent(self, node: str, log: Path) -> NodeAgent:
        arguments = [
            "--kubeconfig", str(self.config), "--device", "eth0", "--pod-device", "veth*", *self.serving,
            "--log-format", "json", *self.arguments,
        ]  # fmt: skip
        return self.make(self.cluster, node, arguments, log)

    def install(self) -> None:
        """Create the agents' account and start them; return when all are ready."""
        for path in (RBAC, CRD):
            self.cluster.kubectl("apply", "-f", "-", text=path.read_text())
        self.cluster.account_kubeconfig(*ACCOUNT, self.config)
        for agent in self.agents:
            agent.start()
        for agent in self.agents:
            wait_for(agent.ready, f"the agent of {agent.node}", READY_S, 0.5)

    def watch(self, kill_s: float, also: Callable[[], None] | None = None) -> None:
        """Record the agents' resources in the background; with `kill_s`, kill and restart all of them, and `also`, at this interval."""
        self._repeat(SAMPLE_S, self._sample)
        if kill_s:
            self._repeat(kill_s, self._restart)
            if also:
                self._repeat(kill_s, also)

    def _repeat(self, pause_s: float, action: Any) -> None:
        def loop() -> None:
            due = time.monotonic() + pause_s
            while not self.stopping.wait(max(0.0, due - time.monotonic())):
                due = max(due + pause_s, time.monotonic())
                try:
                    action()
                except Exception as error:  # the run continues, and reports it at its end
                    self.notes.append(f"{action.__name__}: {error!r}")

        self.threads.append(threading.Thread(target=loop, daemon=True))
        self.threads[-1].start()

    def _sample(self) -> None:
        for agent in self.agents:
            agent.sample()

    def _restart(self) -> None:
        for agent in self.agents:
            agent.sample()
            agent.kill()
        for agent in self.agents:
            agent.start()

    def report(self) -> list[str]:
        """Stop watching, and return the resources and findings of each agent."""
        self._end_watching()
        lines = list(self.notes)
        for agent in self.agents:
            agent.sample()
            with contextlib.suppress(LabError):  # findings() reports that none answers
                wait_for(agent.status, f"the agent of {agent.node}", ANSWER_S, 0.5)
            took = f"at most {agent.peak_mib:.0f} MiB, {agent.cpu_s:.0f} s of CPU"
            lines.append(f"{agent.node}: {agent.starts} starts, {took}")
            lines += [f"{agent.node}: {finding}" for finding in agent.findings()]
        return lines

    def _end_watching(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)

    def stop(self) -> None:
        """End the agents; the end of the cluster removes their remains."""
        self.stopping.set()
        for agent in self.agents:
            agent.kill()


class ShadowAgents(NodeAgents):
    """Agents that serve nothing."""

    make = ShadowAgent
    serving = ("--shadow",)
