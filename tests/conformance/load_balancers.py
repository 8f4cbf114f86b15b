"""What gives Services of type LoadBalancer their addresses in a cluster: two controllers of `lbagent cloud run`, a pools file for the agents, a router.

The outside client is where the controllers run, and the router that learns addresses by BGP.
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
# What the scripts leave out of this group, and one test that asks for what one client and addresses of nodes cannot give: with the
# policy Local and no affinity it wants answers of several nodes, and with affinity of one. Here one node has an address (l2), or
# the router picks a node by the client's address (bgp). It fails with kube-proxy behind such a router, too.
SKIP = (
    r"Netpol|\[(Feature:[^IL]|Feature:Ingress|Provider|Serial|Disruptive|Flaky|Alpha|Deprecated)|IPv6DualStack"
    r"|switch session affinity for LoadBalancer service with Local traffic policy"
)
CLOUD = RBAC.parent.parent / "cloud"
ACCOUNT = ("kube-system", "lbagent-cloud")
REPLICAS = 2
OUTSIDE = os.environ.get("KUBE_PREFIX", "k") + "ext"  # of the cluster's scripts, as its addresses are
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
    """Return the configuration of a BIRD that learns from these nodes, and asks with the client's address, as the scripts' own routes do."""
    text = CONFIG.format(router_id=OUTSIDE_ADDRESS, log=log)
    own = f"ipv4 {{ import none; export filter {{ krt_prefsrc = {CLIENT_ADDRESS}; accept; }}; }};"
    text = text.replace("ipv4 { import none; export all; };", own)
    return text + "".join(
        NEIGHBOUR.format(router=OUTSIDE_ADDRESS, its=ITS_ASN, node=node, ours=OUR_ASN) for node in nodes
    )


class LoadBalancers:
    """The parts beside the agents: made, killed and started again, ended. What runs outside the nodes is the process that was started."""

    def __init__(self, cluster: NodeCluster, folder: Path, mode: str) -> None:
        """Write the pools file; `mode` is l2 or bgp."""
        self.cluster, self.folder, self.mode = cluster, folder, mode
        self.pools = folder / "pools.yaml"
        self.pools.write_text(POOLS[mode])
        self.controllers: dict[int, subprocess.Popen[bytes]] = {}
        self.router: subprocess.Popen[bytes] | None = None
        self.starts = 0
        # by this file the scripts know that Services of type LoadBalancer get addresses
        self.mark = cluster.kubeconfig.parent / "cloud.pid"

    @property
    def agent_arguments(self) -> list[str]:
        """What each agent is told beside the rest."""
        return [f"--announce={self.pools}"]

    def give_rights(self) -> None:
        """Give controllers and agents what deploy/cloud gives them."""
        for name in ("rbac.yaml", "announce.yaml"):
            self.cluster.kubectl("apply", "-f", "-", text=(CLOUD / name).read_text())

    def start(self) -> None:
        """Start router and controllers."""
        self.cluster.account_kubeconfig(*ACCOUNT, self.folder / "cloud.kubeconfig")
        if self.mode == "bgp":
            # beyond the client's own network an address without a route is silence, not an error of its kernel
            self._outside("ip", "link", "add", "beyond", "up", "type", "veth", "peer", "beyond-end")
            self._outside("ip", "link", "set", "beyond-end", "up")
            self._outside("ip", "neigh", "add", NOWHERE, "lladdr", "02:00:00:00:00:01", "dev", "beyond")
            self._outside(
                "ip", "route", "add", ROUTED_POOL, "via", NOWHERE, "onlink", "dev", "beyond", "metric", "10000"
            )
            self._start_router()
        else:  # the suite takes a client with an address of the nodes' subnet for a node
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
        """SIGKILL one controller and start it again: each in its turn, as a Lease outlives a leader by 15 s."""
        number = self.starts % REPLICAS
        self._kill(self.controllers[number])
        self._start_controller(number)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(30)

    def report(self) -> list[str]:
        """Return what the controllers and the Services say at the end."""
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
        """Return the Services of this type that are still there: each has a finalizer of ours."""
        return [
            f"{item['metadata']['namespace']}/{item['metadata']['name']}"
            for item in self.cluster.json("get", "services", "-A")["items"]
            if item["spec"]["type"] == "LoadBalancer"
        ]

    def stop(self) -> None:
        """End what was started here."""
        self.mark.unlink(missing_ok=True)
        for process in [*self.controllers.values(), *([self.router] if self.router else [])]:
            self._kill(process)
