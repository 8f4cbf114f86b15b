"""Kubelet and kubectl of a node reach the API server only by native pools, while it and the agent are killed and restarted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from lbagent.api.client import AgentClient
from lbagent.defaults import DEFAULT_SOCKET
from tests.conformance.node_agents import CGROUP, READY_S, NodeAgent
from tests.conformance.node_cluster import NodeCluster
from tests.conformance.node_program import NodeProgram, replaced
from tests.lab.netns import LabError, wait_for

LOCAL, ALL = "127.0.0.1:7443", "0.0.0.0:8443"
SERVER_NAME = "kubernetes"  # in the certificate of every API server
WITHIN_S = 300  # of a kubelet's action every ten seconds, on a busy machine
POD = "lbagent-apilb"


def pool(server: str, folder: Path) -> str:
    """Return the pool file: one server, and a bind of each kind."""
    binds = {"local": LOCAL, "all": ALL}
    balancers = [
        {"name": name, "bindAddress": bind, "hostConfigPath": str(folder / f"{name}.yaml")}
        for name, bind in binds.items()
    ]
    check = {"interval": "500ms", "timeout": "2s", "fall": 2, "rise": 1, "path": "/readyz"}
    return yaml.safe_dump({"mode": "native", "servers": [server], "healthCheck": check, "apiLoadBalancers": balancers})


def through(config: str, address: str) -> str:
    """Return a kubeconfig with another address of the API server."""
    document = yaml.safe_load(config)
    for each in document["clusters"]:
        each["cluster"] |= {"server": f"https://{address}", "tls-server-name": SERVER_NAME}
    return str(yaml.safe_dump(document))


class ApiServerBind:
    """The check, on the last node of a cluster."""

    def __init__(
        self, cluster: NodeCluster, folder: Path, arguments: Sequence[str], say: Callable[[str], None]
    ) -> None:
        self.cluster, self.folder, self._say = cluster, folder, say
        self.node, self.ok = cluster.nodes[-1], True
        self.pools = folder / "apilb.d"
        self.pools.mkdir()
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        self.server = urlsplit(config["clusters"][0]["cluster"]["server"]).netloc
        addresses = {node: self._address(node) for node in cluster.nodes}
        control = next((node for node, each in addresses.items() if each == urlsplit(f"//{self.server}").hostname), "")
        self.binds = [LOCAL, f"127.0.0.1:{ALL.partition(':')[2]}", f"{addresses[self.node]}:{ALL.partition(':')[2]}"]
        self.agent = NodeAgent(
            cluster,
            self.node,
            ["--apilb", str(self.pools), "--cgroup", CGROUP, *arguments],
            folder / f"{self.node}.log",
        )
        self.api_server = NodeProgram(cluster, control, "kube-apiserver", folder / "kube-apiserver.log")
        self.kubelet = NodeProgram(cluster, self.node, "kubelet", folder / "kubelet.log")

    def _address(self, node: str) -> str:
        status = self.cluster.json("get", "node", node)["status"]
        return str(next(each["address"] for each in status["addresses"] if each["type"] == "InternalIP"))

    def run(self) -> bool:
        """Print the results; return whether all checks passed."""
        try:
            self._install()
            self._check("at first")
            self._restart_api_server()
            self._check("after a restart of the API server")
            self._say("the agent is killed")
            self.agent.kill()
            self._check_kubectl("without an agent")
            self._start_agent()
            self._check("after a restart of the agent")
        finally:
            self._remove()
        return self.ok

    # --- the node ---

    def _install(self) -> None:
        file = self.folder / "config.yaml"
        file.write_text(pool(self.server, self.pools))
        applied = self.agent.ask("apilb", "apply", "-f", str(file), "--yes")
        if applied.returncode:
            raise LabError(f"lbagent apilb apply: {applied.stderr or applied.stdout}")
        self._start_agent()
        flag = "--kubeconfig"
        own = Path(self.kubelet.argv[self.kubelet.argv.index(flag) + 1])
        (self.folder / "kubelet.kubeconfig").write_text(through(own.read_text(), LOCAL))
        self._say(f"kubelet of {self.node} is started again with the API server at {LOCAL}")
        self.kubelet.kill()
        self.kubelet.start(replaced(self.kubelet.argv, flag, str(self.folder / "kubelet.kubeconfig")))

    def _start_agent(self) -> None:
        self.agent.start()
        wait_for(self.agent.ready, f"the agent of {self.node}", READY_S, 0.5)
        self._wait_up(True)

    def _restart_api_server(self) -> None:
        self._say("kube-apiserver is killed")
        self.api_server.kill()
        self._wait_up(False)
        for bind in self.binds:
            done = self._kubectl(bind, "get", "--raw", "/readyz")
            self._claim("refused" in done.stderr, f"{bind} refuses while no server is left", done.stderr)
        self._say("kube-apiserver is started again")
        self.api_server.start()
        self._wait_up(True)

    def _remove(self) -> None:
        """Restore the node."""
        self.agent.kill()
        self.agent.ask("cleanup")
        self.cluster.try_kubectl("delete", "pod", POD, "--ignore-not-found", "--wait=false")
        self.kubelet.kill()
        self.kubelet.start()

    # --- the checks ---

    def _claim(self, true: object, text: str, why: str = "") -> None:
        self.ok = self.ok and bool(true)
        self._say(f"{'ok' if true else 'FAILED'}: {text}" + ("" if true else f": {why.strip()}"))

    def _rows(self) -> list[dict[str, Any]]:
        return AgentClient(f"/proc/{self.agent.pid}/root{DEFAULT_SOCKET}").apilb()

    def _wait_up(self, up: bool) -> None:
        def matches() -> bool:
            servers = [server for row in self._rows() for server in row["servers"]]
            return len(servers) == 2 and all(server["up"] is up and server["last"] for server in servers)

        wait_for(matches, f"the API server {'up' if up else 'down'} in both pools", WITHIN_S, 0.2)

    def _kubectl(self, bind: str, *words: str) -> Any:
        config = self.folder / "kubectl.kubeconfig"
        config.write_text(through(self.cluster.kubeconfig.read_text(), bind))
        return self.cluster.run_on_node(self.node, ["kubectl", "--kubeconfig", str(config), *words])

    def _check_kubectl(self, when: str) -> None:
        for bind in self.binds:
            done = self._kubectl(bind, "get", "nodes", "-o", "name")
            self._claim(f"node/{self.node}" in done.stdout.split(), f"kubectl by {bind} {when}", done.stderr)

    def _check(self, when: str) -> None:
        """kubectl by each bind; kubelet renews its Lease, and runs a Pod."""
        self._check_kubectl(when)
        since = time.time()
        wait_for(lambda: self._renewed() > since, f"kubelet's Lease {when}", WITHIN_S, 1.0)
        self._claim(True, f"kubelet renews its Lease {when}")
        self._claim(self._connections(), f"kubelet's connection is one by the bind {when}")
        self.cluster.kubectl("delete", "pod", POD, "--ignore-not-found", "--grace-period=0", "--force")
        self.cluster.kubectl("create", "-f", "-", text=yaml.safe_dump(self._pod()))
        wait_for(
            lambda: self.cluster.json("get", "pod", POD)["status"]["phase"] == "Running", f"a Pod {when}", WITHIN_S, 1.0
        )
        self._claim(True, f"kubelet runs a new Pod {when}")

    def _connections(self) -> int:
        """Return the number of connections by kubelet's bind."""
        (row,) = [row for row in self._rows() if row["bind_address"] == LOCAL]
        return sum(server["connections"] for server in row["servers"])

    def _renewed(self) -> float:
        lease = self.cluster.json("-n", "kube-node-lease", "get", "lease", self.node)
        return datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()

    def _pod(self) -> dict[str, Any]:
        images = self.cluster.json("get", "node", self.node)["status"]["images"]
        image = next(name for each in images for name in each["names"] if "pause" in name and "@" not in name)
        container = {"name": "pause", "image": image, "imagePullPolicy": "Never"}
        spec = {"nodeName": self.node, "containers": [container], "automountServiceAccountToken": False}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}
