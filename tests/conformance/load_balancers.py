"""The parts that give addresses to Services of type LoadBalancer in a cluster: two controllers of `lbagent cloud run`, a pools file for the agents, a router.

The outside client runs in the namespace of the controllers and of the BGP router.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from lbagent.announce.bgp.bird_process import find_program
from tests.conformance.node_cluster import NodeCluster
from tests.kube_api.cluster import RBAC
from tests.lab.agent import program
from tests.lab.bird_router import CONFIG
from tests.lab.netns import LabError, wait_for

FOCUS = r"LoadBalancers"
# Tests of this group that the scripts leave out, and one test that one client and addresses of nodes cannot fulfil: with policy
# Local and no affinity it expects answers of several nodes, and with affinity of one. Here one node has an address (l2), or the
# router selects a node by the client's address (bgp). It fails with kube-proxy behind such a router too.
SKIP = (
    r"Netpol|\[(Feature:[^IL]|Feature:Ingress|Provider|Serial|Disruptive|Flaky|Alpha|Deprecated)|IPv6DualStack"
    r"|switch session affinity for LoadBalancer service with Local traffic policy"
)
CLOUD = RBAC.parent.parent / "cloud"
ACCOUNT = ("kube-system", "lbagent-cloud")
REPLICAS = 2
OUTSIDE = os.environ.get("KUBE_PREFIX", "k") + "ext"  # from the cluster's scripts, like its addresses
OUTSIDE_ADDRESS, CLIENT_ADDRESS = "172.31.77.1", "192.168.77.1"
OUR_ASN, ITS_ASN = 64512, 64513
LAN_POOL, ROUTED_POOL = "172.31.77.192/26", "172.31.79.0/24"
NOWHERE = "169.254.9.9"
POOLS = {
    "l2": f"pools: [{{name: lan, addresses: [{LAN_POOL}], announce: [l2]}}]\n",
    "bgp": f"""pools: [{{name: routed, addresses: [{ROUTED_POOL}], announce: [bgp]}}]
bgp: {{localASN: {OUR_ASN}, peers: [{{address: {OUTSIDE_ADDRESS}, asn: {ITS_ASN}, bfd: {{interval: 300ms, multiplier: 3}}}}]}}
""",
}
NEIGHBOUR = """
protocol bgp {{
  local {router} as {its}; neighbor {node} as {ours}; bfd on;
  ipv4 {{ import all; export none; add paths rx; }};
}}
"""
ROUTER_S, GONE_S = 30, 90
LOCAL = "[sig-network] LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] [Slow] "
ALL = "[sig-network] LoadBalancers [Feature:LoadBalancer] "
OF_LOCAL = (
    "should only target nodes with endpoints",
    "should target all nodes with endpoints",
    "should work for type=LoadBalancer",
    "should work from pods",
)
OF_ALL = (
    "should be able to change the type and ports of a TCP service [Slow]",
    "should be able to change the type and ports of a UDP service [Slow]",
    "should be able to create LoadBalancer Service without NodePort and change it [Slow]",
    "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on different nodes",
    "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer service on the same nodes",
    "should be able to switch session affinity for LoadBalancer service with Cluster traffic policy [Slow] [LinuxOnly]",
    "should handle load balancer cleanup finalizer for service [Slow]",
    "should have session affinity work for LoadBalancer service with Cluster traffic policy [Slow] [LinuxOnly]",
    "should have session affinity work for LoadBalancer service with Local traffic policy [Slow] [LinuxOnly]",
    "should not have connectivity disruption during rolling update with externalTrafficPolicy=Cluster [Slow]",
    "should not have connectivity disruption during rolling update with externalTrafficPolicy=Local [Slow]",
    "should only allow access from service loadbalancer source ranges [Slow]",
)
TITLES = [LOCAL + each for each in OF_LOCAL] + [ALL + each for each in OF_ALL]


def router_config(nodes: Iterable[str], log: Path) -> str:
    """Return the configuration of a BIRD that imports from these nodes, and uses the client's source address, as the scripts' own routes do."""
    text = CONFIG.format(router_id=OUTSIDE_ADDRESS, log=log)
    own = f"ipv4 {{ import none; export filter {{ krt_prefsrc = {CLIENT_ADDRESS}; accept; }}; }};"
    text = text.replace("ipv4 { import none; export all; };", own)
    return text + "".join(
        NEIGHBOUR.format(router=OUTSIDE_ADDRESS, its=ITS_ASN, node=node, ours=OUR_ASN) for node in nodes
    )


class LoadBalancers:
    """The parts besides the agents: started, killed and restarted, ended. Their processes run outside the nodes."""

    def __init__(self, cluster: NodeCluster, folder: Path, mode: str) -> None:
        """Write the pools file; `mode` is l2 or bgp."""
        self.cluster, self.folder, self.mode = cluster, folder, mode
        self.pools = folder / "pools.yaml"
        self.pools.write_text(POOLS[mode])
        self.controllers: dict[int, subprocess.Popen[bytes]] = {}
        self.router: subprocess.Popen[bytes] | None = None
        self.starts = 0
        # with this file the scripts run the tests of Services of type LoadBalancer
        self.mark = cluster.kubeconfig.parent / "cloud.pid"

    @property
    def agent_arguments(self) -> list[str]:
        """Further arguments of each agent."""
        return [f"--announce={self.pools}"]

    def give_rights(self) -> None:
        """Apply the rights of deploy/cloud for controllers and agents."""
        for name in ("rbac.yaml", "announce.yaml"):
            self.cluster.kubectl("apply", "-f", "-", text=(CLOUD / name).read_text())

    def start(self) -> None:
        """Start router and controllers."""
        self.cluster.account_kubeconfig(*ACCOUNT, self.folder / "cloud.kubeconfig")
        if self.mode == "bgp":
            # outside the client's network an address without a route gives no answer, and not an error of the client's kernel
            self._outside("ip", "link", "add", "beyond", "up", "type", "veth", "peer", "beyond-end")
            self._outside("ip", "link", "set", "beyond-end", "up")
            self._outside("ip", "neigh", "add", NOWHERE, "lladdr", "02:00:00:00:00:01", "dev", "beyond")
            self._outside(
                "ip", "route", "add", ROUTED_POOL, "via", NOWHERE, "onlink", "dev", "beyond", "metric", "10000"
            )
            self._start_router()
        else:  # the suite treats a client with an address of the nodes' subnet as a node
            self._outside("ip", "route", "add", LAN_POOL, "dev", "eth0", "src", CLIENT_ADDRESS)
        for number in range(REPLICAS):
            self._start_controller(number)
        self.mark.write_text(f"{self.controllers[0].pid}\n")

    def _outside(self, *argv: str) -> None:
        self.cluster.must_run_on_node(OUTSIDE, argv)

    def _start_controller(self, number: int) -> None:
        argv = [*program(), "cloud", "run", "--provider", "pool", "--config", str(self.pools)]
        argv += ["--kubeconfig", str(self.folder / "cloud.kubeconfig")]
        with (self.folder / f"cloud-{number}.log").open("ab") as log:
            self.controllers[number] = subprocess.Popen(self.cluster.on_node(OUTSIDE, argv), stdout=log, stderr=log)
        self.starts += 1

    def _start_router(self) -> None:
        nodes = self.cluster.json("get", "nodes")["items"]
        addresses = [each for node in nodes for each in node["status"]["addresses"] if each["type"] == "InternalIP"]
        text = router_config([each["address"] for each in addresses], self.folder / "router.log")
        config, socket = self.folder / "router.conf", self.folder / "router.ctl"
        config.write_text(text)
        argv = [find_program(), "-f", "-c", str(config), "-s", str(socket)]
        with (self.folder / "router.out").open("ab") as log:
            self.router = subprocess.Popen(self.cluster.on_node(OUTSIDE, argv), stdout=log, stderr=log)
        wait_for(socket.exists, "the router's socket", ROUTER_S)

    def restart(self) -> None:
        """SIGKILL one controller and restart it: each in turn, as a Lease outlives a leader by 15 s."""
        number = self.starts % REPLICAS
        self._kill(self.controllers[number])
        self._start_controller(number)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(30)

    def report(self) -> list[str]:
        """Return the findings about controllers and Services at the end."""
        lines = [f"controllers: {self.starts} starts"]
        for each in self.controllers.values():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{each.pid}/status").read_text().splitlines()
                peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
                lines.append(f"a controller: at most {int(peak) // 1024} MiB")
        with contextlib.suppress(LabError):
            wait_for(lambda: not self._left(), "the end of the suite's Services", GONE_S, 1.0)
        return lines + [f"left: Service {each}" for each in self._left()]

    def _left(self) -> list[str]:
        """Return the remaining Services of this type: each has lbagent's finalizer."""
        return [
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in self.cluster.json("get", "services", "-A")["items"]
            if item["spec"]["type"] == "LoadBalancer"
        ]

    def stop(self) -> None:
        """End the started processes."""
        self.mark.unlink(missing_ok=True)
        for process in [*self.controllers.values(), *([self.router] if self.router else [])]:
            self._kill(process)
