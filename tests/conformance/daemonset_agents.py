"""An agent on each node of a cluster, as a user installs it: the image of deploy/image, the objects of deploy/, a DaemonSet's Pods."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from lbagent import __version__
from tests.conformance.kubectl_plugin import KubectlPlugin
from tests.conformance.node_agents import ACCOUNT, READY_S, NodeAgent, NodeAgents
from tests.conformance.node_cluster import NodeCluster
from tests.lab.netns import LabError, wait_for
from tests.lab.topology import ROOT

NAMESPACE, NAME = ACCOUNT
LABEL = f"app.kubernetes.io/name={NAME}"
PINS = "/sys/fs/bpf/lbagent"  # on each node
ENDED_S, AGAIN_S, CLEAN_S = 30, 120, 120
DEPLOY = ROOT / "deploy"


def overlay(deploy: Path, folder: Path, server: str, arguments: Sequence[str]) -> Path:
    """Write the objects that one cluster needs in addition to deploy/ (docs/kubernetes.md, "Install"), and return their folder.

    `server` is the URL of the API, not of a Service; `arguments` are further ones for each agent.
    """
    url = urlsplit(server)
    host, port = url.hostname or "", str(url.port or 443)
    api_server = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lbagent-api-server", "namespace": NAMESPACE},
        "data": {"host": host, "port": port},
    }  # fmt: skip
    last = "/spec/template/spec/containers/0/args/-"
    more = [{"op": "add", "path": last, "value": word} for word in arguments]
    kustomization = {
        "resources": [os.path.relpath(deploy, folder), "api-server.yaml"],
        "patches": [{"target": {"kind": "DaemonSet", "name": NAME}, "patch": yaml.safe_dump(more)}],
    }
    folder.mkdir()
    (folder / "api-server.yaml").write_text(yaml.safe_dump(api_server))
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def container_log(text: str) -> str:
    """Return a container's output, from the runtime's files: each line begins with time, stream, P(art) or F(ull)."""
    written = []
    for line in text.splitlines():
        _, _, rest = line.partition(" ")
        _, _, rest = rest.partition(" ")
        whole, _, part = rest.partition(" ")
        written.append(part if whole == "P" else part + "\n")
    return "".join(written)


class PodAgent(NodeAgent):
    """The agent of one node, in the DaemonSet's Pod there."""

    def __init__(self, cluster: NodeCluster, node: str, log: Path) -> None:
        super().__init__(cluster, node, [], log)
        self.pod: dict[str, Any] = {}  # the API's object, as last read
        self._starts: dict[str, int] = {}  # of containers, by Pod
        self._logs: dict[str, str] = {}  # a container's output, by file

    @property
    def restarts(self) -> int:
        """How often the kubelet restarted the container."""
        return int(sum(each["restartCount"] for each in self.pod.get("status", {}).get("containerStatuses", [])))

    @property
    def pid(self) -> int | None:
        """The agent's process: in a cgroup of the Pod, which also has its pause process and those of `kubectl exec`."""
        if not self.pod:
            return None
        group, word = f"/pod{self.pod['metadata']['uid']}/", f"--node-name={self.node}"
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if group in (path / "cgroup").read_text() and word in (path / "cmdline").read_text().split("\0"):
                    return int(path.name)
        return None

    def kill(self) -> None:
        """SIGKILL: no chance to clean up."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not Path(f"/proc/{pid}").exists(), f"the end of the agent of {self.node}", ENDED_S)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line in the Pod."""
        name = self.pod["metadata"]["name"]
        return self.cluster.try_kubectl("-n", NAMESPACE, "exec", name, "-c", NAME, "--", "lbagent", *words)

    def keep_log(self) -> None:
        """Record the output of the Pod's containers, and their number.

        Both are lost with the Pod, and the kubelet keeps one ended container, so the log of the first is lost when the second one ends.
        """
        if not self.pod:
            return
        meta = self.pod["metadata"]
        files = f"/var/log/pods/{NAMESPACE}_{meta['name']}_{meta['uid']}/{NAME}/*.log"
        lines = self.cluster.run_on_node(self.node, ["sh", "-c", f"grep -H '' {files}"]).stdout.splitlines()
        found: dict[str, list[str]] = {}
        for path, _, line in (line.partition(":") for line in lines):
            found.setdefault(path, []).append(line)
        self._logs |= {path: container_log("\n".join(each)) for path, each in found.items()}
        self._starts[meta["uid"]] = self.restarts + 1
        self.starts = sum(self._starts.values())
        self.log.write_text("".join(self._logs.values()))


class DaemonSetAgents(NodeAgents):
    """The agents of all nodes, by `kubectl apply -k`."""

    agents: Sequence[PodAgent]
    image = f"lbagent:{__version__}"  # as deploy/kustomization.yaml names it

    @property
    def overlay(self) -> Path:
        """The kustomization that is applied."""
        return self.folder / "overlay"

    def _agent(self, node: str, log: Path) -> PodAgent:
        return PodAgent(self.cluster, node, log)

    def install(self) -> None:
        """Build the image, copy it to each node, apply the objects; return when the DaemonSet is ready."""
        archive = self.folder / "lbagent.tar"
        command = [sys.executable, str(DEPLOY / "image"), "-o", str(archive), "--tag", self.image]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(done.stderr.strip())
        self.notes.append(f"image {done.stdout.strip()}")
        for node in self.cluster.nodes:
            self.cluster.must_run_on_node(node, ["ctr", "-n", "k8s.io", "images", "import", str(archive)])
        archive.unlink()
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]["server"]
        overlay(DEPLOY, self.overlay, server, ["--log-format=json", *self.arguments])
        self.apply()

    def apply(self) -> None:
        """Install or update the objects in the cluster; return when the DaemonSet is ready."""
        self.cluster.kubectl("apply", "-k", str(self.overlay))
        self.rolled_out(NAME)
        self._look()

    def rolled_out(self, name: str, timeout_s: int = READY_S) -> None:
        try:
            self.cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{name}", f"--timeout={timeout_s}s")
        except LabError as error:
            seen = self.cluster.try_kubectl("-n", NAMESPACE, "describe", "pods", "-l", f"app.kubernetes.io/name={name}")
            raise LabError(f"{error}\n{seen.stdout}") from error

    def _look(self) -> None:
        """Read the Pod of each node; a terminating one counts if there is no other."""
        pods = self.cluster.json("-n", NAMESPACE, "get", "pods", "-l", LABEL)["items"]
        pods.sort(key=lambda pod: "deletionTimestamp" not in pod["metadata"])
        found = {pod["spec"].get("nodeName"): pod for pod in pods}
        for agent in self.agents:
            agent.pod = found.get(agent.node, {})

    def _all_ready(self) -> bool:
        self._look()
        return all(agent.status().get("ready") for agent in self.agents)

    def _sample(self) -> None:
        if not all(agent.pid for agent in self.agents):
            self._look()
        super()._sample()

    def _restart(self) -> None:
        """Kill every agent; the kubelet restarts it.

        It does so at once the first time, then after 10 s, 20 s and so on up to 5 minutes. So a Pod whose container was restarted
        already is deleted: the DaemonSet creates another one, which starts at once.
        """
        self._look()
        delayed = [agent for agent in self.agents if agent.restarts]
        for agent in delayed:
            agent.keep_log()
        for agent in self.agents:
            agent.sample()
            agent.kill()
        for agent in delayed:
            agent.keep_log()  # the last lines
        if delayed:
            names = [agent.pod["metadata"]["name"] for agent in delayed]
            self.cluster.kubectl("-n", NAMESPACE, "delete", "pod", "--wait=false", *names)

    def _end_watching(self) -> None:
        super()._end_watching()
        with contextlib.suppress(LabError):  # findings() reports the failure
            wait_for(self._all_ready, "the agents, after a kill just now", AGAIN_S, 1.0)
        for agent in self.agents:
            agent.keep_log()

    def report(self) -> list[str]:
        """Return also what the kubectl plug-in shows of them."""
        return [*super().report(), KubectlPlugin(self.cluster, self.folder / "plugin").check()]

    def stop(self) -> None:
        """Remove them; raise LabError if pins stay."""
        self.stopping.set()
        if self.overlay.exists():
            self.remove()

    def remove(self) -> None:
        """Follow docs/kubernetes.md, "Remove"; raise LabError if pins stay."""
        self.cluster.kubectl("delete", "-k", str(self.overlay), "--ignore-not-found")
        self.apply_cleanup()
        self.rolled_out(f"{NAME}-cleanup", CLEAN_S)
        self.delete_cleanup()
        if left := self.with_pins():
            raise LabError(f"{PINS} is left on {', '.join(left)}")

    def apply_cleanup(self) -> None:
        """Start the clean-up of the kernel."""
        self.cluster.kubectl("apply", "-k", str(DEPLOY / "cleanup"))

    def delete_cleanup(self) -> None:
        """Delete the clean-up objects."""
        self.cluster.kubectl("delete", "-k", str(DEPLOY / "cleanup"))

    def with_pins(self) -> list[str]:
        """Return the nodes that have pins of an agent."""
        return [node for node in self.cluster.nodes if not self.cluster.run_on_node(node, ["ls", PINS]).returncode]
