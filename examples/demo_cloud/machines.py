"""The machines of the demo and their processes: a LAN with nodes, a BGP router next to it, a home behind a UPnP router."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kube_api import cloud_process
from tests.kube_api.announcing_nodes import AgentNode, Host, Link, start_server
from tests.kube_api.cloud_process import CloudProcess
from tests.kube_api.cluster import Cluster
from tests.kube_api.control_plane import PORT, ControlPlane
from tests.kube_api.programs import Programs
from tests.lab import netns
from tests.lab.bird_router import BirdRouter
from tests.lab.netns import Namespace, veth
from tests.lab.router import HOST, OUTSIDE, WAN, Router, need_router
from tests.lab.topology import end, uninterrupted

ROUTER, WORKER, LB_CLASS = "10.8.0.250", "10.8.0.20", "lbagent.io/edge"
PODS = {"web-1": "10.8.0.21", "web-2": "10.8.0.22", "shop-1": "10.8.0.23", "shop-2": "10.8.0.24"}
POOLS = f"""\
pools:
- {{name: lan, addresses: [10.8.0.100-10.8.0.150], announce: [l2]}}
- {{name: public, addresses: [172.31.78.0/28], announce: [bgp], autoAssign: false}}
bgp: {{localASN: 64512, peers: [{{address: {ROUTER}, asn: 64513, bfd: {{interval: 300ms, multiplier: 3}}}}]}}
"""
NEIGHBOUR = """
protocol bgp node{number} {{
  local as 64513;
  neighbor 10.8.0.{number} as 64512;
  bfd on; graceful restart on;
  connect delay time 1; connect retry time 2; error wait time 1, 2;
  ipv4 {{ import all; export none; }};
}}
"""
MAP = f"""laptop 10.8.0.200 ─────────────────────┐         ┌─ node-1 10.8.0.1   agent, BIRD, a Pod of api
                                       ├── LAN ──┼─ node-2 10.8.0.2   agent, BIRD, a Pod of api
branch 10.20.0.2 ── router {ROUTER} ─┘         └─ worker {WORKER}  Pods of web and shop
                    (BIRD, AS 64513)
outside {OUTSIDE} ── home router {WAN} ────────── home {HOST}  agent, Pod of media
                    (miniupnpd)"""


class Machines:
    """All machines; a context manager that removes them."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self._closing = programs, contextlib.ExitStack()

    def __enter__(self) -> Self:
        netns.sweep()
        need_router()
        try:
            with uninterrupted():
                self.folder = Path(tempfile.mkdtemp(prefix=f"{netns.FOLDER}{os.getpid()}-"))
                self._closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
                self.plane = ControlPlane(self.programs, self.folder / "kube")
                self._closing.callback(self.plane.close)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.cluster = Cluster(self.plane)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._closing.close()

    def start(self) -> None:
        """Start everything; return when the agents are ready. Raises LabError, NoBird."""
        self.plane.start()
        self.cluster.prepare(node=False)
        cloud_process.give_rights(self.plane)
        self.plane.start_controllers()
        with uninterrupted():
            self._make_lan()
            self._make_branch()
            self._make_home()
        self.router.start(ROUTER, "".join(NEIGHBOUR.format(number=number) for number in (1, 2)))
        self.home_router.start()
        self._start_controllers()
        nodes = [*self.hosts, self.home]
        for node in nodes:
            node.agent.start(wait=False)
        self._start_pods()
        for node in nodes:
            node.agent.wait_ready()

    @property
    def hosts(self) -> list[Host]:
        """The nodes that announce."""
        return list(self.link.hosts.values())

    def other(self, host: Host) -> Host:
        return next(each for each in self.hosts if each is not host)

    # --- setup ---

    def _space(self, role: str) -> Namespace:
        space = Namespace(role)
        self._closing.callback(space.delete)
        return space

    def _make_lan(self) -> None:
        self.link = Link(self.cluster, "", pools=POOLS, host_prefix="node-")
        self._closing.callback(self.link.close)
        for number in (1, 2):
            host = self.link.add_host(number)
            key = host.folder / "liveness.key"
            key.write_text("the same on both nodes, out of a Secret in a cluster")
            host.agent.arguments += ["--node-liveness", "udp", "--liveness-key-file", str(key)]
        self.laptop = self.link.client
        self.worker = self.link.join("worker", WORKER, "fd08::20")
        self._closing.callback(self.worker.delete)
        self.cluster.add_node("worker", WORKER)

    def _make_branch(self) -> None:
        """Create the router, which gets its routes to the addresses by BGP, and a client behind it."""
        tor, self.branch = self.link.join("router", ROUTER, "fd08::250"), self._space("branch")
        self._closing.callback(tor.delete)
        tor.sysctl("ipv4/ip_forward", 1)
        tor.sysctl("ipv4/fib_multipath_hash_policy", 1)  # hash ports too: connections of one client use both routes
        veth(self.branch, "eth0", tor, "branch0")
        self.branch.checksum_offload_off("eth0")
        tor.ip("addr add 10.20.0.1/24 dev branch0")
        self.branch.ip("addr add 10.20.0.2/24 dev eth0", "route add default via 10.20.0.1")
        for host in self.hosts:
            host.node.ip(f"route add 10.20.0.0/24 via {ROUTER}")
        self.router = BirdRouter(tor, self.folder)
        self._closing.callback(self.router.close)

    def _make_home(self) -> None:
        self.home_router = self._closing.enter_context(Router("home-"))
        self.home_router.outside.checksum_offload_off("w0")
        closing = self._closing.enter_context(contextlib.ExitStack())
        self.home = AgentNode(self.plane, "home", self.home_router.host, closing)
        self.home.agent.devices = [Router.lan_device]
        self.home_pod = self._space("home-pod")
        self.cluster.add_node("home", HOST)

    def _start_pods(self) -> None:
        for name, address in PODS.items():
            ipv6 = f"fd08::{address.rpartition('.')[2]}"
            self.worker.ip(f"addr add {address}/24 dev eth0", f"addr add {ipv6}/64 dev eth0 nodad")
            self._closing.callback(end, start_server(self.worker, name, address, ipv6))
            self.cluster.add_pod(name, name.partition("-")[0], address, node="worker")
        for number, host in enumerate(self.hosts, 1):
            self.cluster.add_pod(f"api-{number}", "api", host.pod_address, node=host.name)
        address = self.home.add_pod(self.home_pod, "10.9.9")
        self.cluster.add_pod("media-1", "media", address, node="home")

    def _start_controllers(self) -> None:
        """Start a controller for each provider: pool on any machine, edge on the node behind the home router."""
        at_home = ("home", "--lb-class", LB_CLASS)
        for provider, config, where, port, (name, *more) in (
            ("pool", POOLS, self.plane.namespace, PORT, ("controller",)),
            ("edge", "poll: 5s\n", self.home.node, self.home.proxy.port, at_home),
        ):
            token = self.plane.account_token(cloud_process.ACCOUNT)
            kubeconfig = self.plane.kubeconfig(token, self.folder / f"{provider}.kubeconfig", port)
            process = CloudProcess(self.folder, kubeconfig, provider, config, *more, name=name)
            process.argv = where.command(process.argv)
            self._closing.callback(process.close)
            process.start()
