"""A Kubernetes cluster in namespaces, through the scripts that start it (docs/conformance.md lists their interface)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab.netns import LabError, wait_for

KUBECONFIG = "KUBECONFIG="  # the line of `cluster.sh up` with the administrator's kubeconfig
DNS_READY_S = 300


class NodeCluster:
    """One cluster: start, nodes, kubectl, programs on its nodes, the suite, end."""

    def __init__(self, scripts: Path) -> None:
        """`folder` has cluster.sh, e2e.sh and baseline.txt."""
        self.scripts, self.kubeconfig = scripts, Path()
        self.nodes: list[str] = []
        for name in ("cluster.sh", "e2e.sh", "baseline.txt"):
            if not (scripts / name).exists():
                raise LabError(f"{scripts} has no {name}: CLUSTER names the folder of a cluster's scripts")

    def up(self, nodes: int, *, dual_stack: bool = True, proxy: str = "none") -> None:
        """Start it, without a service proxy if `proxy` is none. Missing programs are built first: some minutes."""
        argv = [self._script("cluster.sh"), "up", "--nodes", str(nodes), "--proxy", proxy]
        argv += ["--dual-stack"] if dual_stack else []
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise LabError(f"{' '.join(argv)}: exit {done.returncode}")
        self.adopt(next(line for line in done.stdout.splitlines() if line.startswith(KUBECONFIG))[len(KUBECONFIG) :])

    def adopt(self, kubeconfig: str) -> None:
        """Use the running cluster of a kubeconfig."""
        self.kubeconfig = Path(kubeconfig)
        self.nodes = [node["metadata"]["name"] for node in self.json("get", "nodes")["items"]]

    def down(self) -> None:
        """Remove it, with everything on its nodes."""
        subprocess.run([self._script("cluster.sh"), "down"], check=False)

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """Run kubectl as administrator and return its output."""
        done = self.try_kubectl(*words, text=text)
        if done.returncode:
            raise LabError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def try_kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as administrator; return its result, also a failure."""
        argv = [self._script("cluster.sh"), "kubectl", *words]
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=False)

    def json(self, *words: str) -> Any:
        return json.loads(self.kubectl(*words, "-o", "json"))

    def on_node(self, node: str, argv: Sequence[str]) -> list[str]:
        """Return argv with a prefix that enters all namespaces and cgroups of a node."""
        return [self._script("cluster.sh"), "exec", node, *argv]

    def run_on_node(self, node: str, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a program on a node to its end."""
        return subprocess.run(self.on_node(node, argv), capture_output=True, text=True, check=False)

    def must_run_on_node(self, node: str, argv: Sequence[str]) -> str:
        """Run a program on a node and return its output."""
        done = self.run_on_node(node, argv)
        if done.returncode:
            raise LabError(f"{node}: {' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def account_kubeconfig(self, namespace: str, account: str, path: Path) -> Path:
        """Write a kubeconfig of a service account."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        token = self.kubectl("-n", namespace, "create", "token", account, "--duration=24h").strip()
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    def wait_dns(self) -> None:
        """Wait until the cluster's DNS serves: its pods read the API by a ClusterIP."""

        def available() -> bool:
            status = self.json("-n", "kube-system", "get", "deployment", "coredns")["status"]
            return any(
                each["type"] == "Available" and each["status"] == "True" for each in status.get("conditions", [])
            )

        wait_for(available, "kube-dns", DNS_READY_S, 1.0)

    def suite(self, focus: str, procs: int, say: Callable[[str], None], skip: str = "") -> str:
        """Run the tests whose title matches, `procs` at a time, and return one line for each of them.

        `skip`: not those whose title matches this; replaces the scripts' own list.
        """
        argv = [self._script("e2e.sh"), focus, *([skip] if skip else [])]
        lines = []
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "E2E_PROCS": str(procs)}
        ) as suite:
            assert suite.stdout is not None
            try:
                for line in suite.stdout:
                    lines.append(line)
                    say(line.rstrip())
            finally:
                with contextlib.suppress(ProcessLookupError):  # its child processes outlive it
                    os.killpg(suite.pid, signal.SIGKILL)
        return "".join(lines)

    def _script(self, name: str) -> str:
        return str(self.scripts / name)
