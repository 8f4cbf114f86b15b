"""`kubectl-lbagent` with the cluster's kubectl, whose exec the kubelets of the nodes run in the agents' Pods."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.conformance.node_cluster import NodeCluster
from tests.lab.netns import LabError
from tests.lab.topology import ROOT

PLUGIN = ROOT / "lbagent" / "cli" / "kubectl_plugin.py"
TIMEOUT_S = 120
DNS = "kube-system/kube-dns"
NOT_FOUND = 3


class KubectlPlugin:
    """A folder of PATH with `kubectl`, which is the cluster's, and `kubectl-lbagent`."""

    def __init__(self, cluster: NodeCluster, folder: Path) -> None:
        """Write the folder."""
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        kubectl = folder / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec {cluster.scripts / "cluster.sh"} kubectl "$@"\n')
        kubectl.chmod(0o755)
        shutil.copy(PLUGIN, folder / "kubectl-lbagent")
        (folder / "kubectl-lbagent").chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the plug-in."""
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        argv = [str(self.folder / "kubectl-lbagent"), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=env)

    def check(self) -> str:
        """Ask one node, all nodes, one that does not exist; return what was seen. Raises LabError for another answer."""
        for node in self.cluster.nodes:
            rows = json.loads(self._must("--node", node, "svc", "list", "-o", "json"))
            if DNS not in {f"{row['namespace']}/{row['name']}" for row in rows}:
                raise LabError(f"kubectl lbagent --node {node} svc list: {DNS} is not in it")
            self._must("--node", node, "flow", "count")
            done = self.run("--node", node, "backend", "get", "192.0.2.9:80")
            if done.returncode != NOT_FOUND:
                raise LabError(
                    f"kubectl lbagent backend get: exit {done.returncode}, not the verb's: {done.stderr.strip()}"
                )
        head, *lines = self._must("--all-nodes", "svc", "list").splitlines()
        seen = {line.split()[head.split().index("NODE")] for line in lines}
        if seen != set(self.cluster.nodes):
            raise LabError(f"kubectl lbagent --all-nodes svc list: nodes {sorted(seen)}")
        if (done := self.run("--node", "no-such-node", "svc", "list")).returncode != NOT_FOUND:
            raise LabError(f"kubectl lbagent --node no-such-node: exit {done.returncode}: {done.stderr.strip()}")
        return f"kubectl lbagent: {len(self.cluster.nodes)} nodes answered, each with its exit code; --all-nodes has {len(lines)} rows"

    def _must(self, *words: str) -> str:
        done = self.run(*words)
        if done.returncode:
            raise LabError(f"kubectl lbagent {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout
