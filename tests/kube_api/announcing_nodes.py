"""Nodes with agents on one link, with a control plane, and a client on the link, which finds the answering nodes by ARP and NDP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import yaml

from tests.kube_api.cluster import Cluster, collection
from tests.kube_api.control_plane import MERGE, PORT, ControlPlane
from tests.kube_api.proxy import Proxy
from tests.lab import traffic
from tests.lab.agent import KubeAgent
from tests.lab.netns import LabError, Namespace, veth, wait_for
from tests.lab.scratch import scratch_folder
from tests.lab.topology import ROOT, end

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
RIGHTS = ROOT / "deploy" / "cloud" / "announce.yaml"
POOLS = """\
pools:
- {name: lan, addresses: [10.8.0.100-10.8.0.150, "fd08::100/120"], announce: [l2]}
l2: {restartGrace: 8s}
"""


def give_rights(cluster: Cluster) -> None:
    """Allow the agent's account to write Leases."""
    for obj in yaml.safe_load_all(RIGHTS.read_text()):
        cluster.plane.send("POST", collection(obj), obj)


def take_rights(cluster: Cluster) -> None:
    """Remove that right."""
    for obj in yaml.safe_load_all(RIGHTS.read_text()):
        cluster.plane.send("DELETE", f"{collection(obj)}/{obj['metadata']['name']}")


class AgentNode:
    """A namespace as a node, with its own bpffs, proxy to the API server and agent. The proxy dies with the node, as its link would."""

    def __init__(self, plane: ControlPlane, name: str, node: Namespace, closing: contextlib.ExitStack) -> None:
        self.name, self.node, self.closing = name, node, closing
        self.folder, root = scratch_folder(self.closing, "host")
        self.bpffs, self.socket = root / "lbagent", self.folder / "agent.sock"
        self.node.sysctl("ipv4/ip_forward", 1)
        self.node.sysctl("ipv6/conf/all/forwarding", 1)
        self.proxy = Proxy(plane.namespace, PORT, listen=self.node)
        self.closing.callback(self.proxy.close)
        self.kubeconfig = plane.kubeconfig(plane.lasting_token, self.folder / "kubeconfig", self.proxy.port)
        self.agent = KubeAgent(self, self.folder, attach="tc")  # type: ignore[arg-type]
        self.agent.name, self.agent.devices = name, ["eth0"]

    def add_pod(self, pod: Namespace, net: str) -> str:
        """Create a pod with a server that returns the node's name: .2 of the network, the node is .1; return its address."""
        self.pod = pod
        self.closing.callback(pod.delete)
        veth(pod, "eth0", self.node, "pod0")
        pod.ip(f"addr add {net}.2/24 dev eth0", f"route add default via {net}.1")
        self.node.ip(f"addr add {net}.1/24 dev pod0")
        self.closing.callback(end, start_server(pod, self.name, f"{net}.2"))
        return f"{net}.2"


def start_server(space: Namespace, name: str, ipv4: str, ipv6: str = "::1") -> subprocess.Popen[str]:
    """Start a server that returns this name; return when it listens. Raises LabError."""
    argv = [sys.executable, "-m", "tests.lab.server", name, "--http", "8080", "--dns", "5353"]
    process = space.popen([*argv, "--ipv4", ipv4, "--ipv6", ipv6], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise LabError(f"server {name} did not start")
    return process


class Host(AgentNode):
    """A node with a device on the link, and by default a pod; its agent announces addresses."""

    def __init__(self, link: Link, number: int, *, pod: bool = True) -> None:
        self.link, self.number = link, number
        closing = contextlib.ExitStack()
        link.closing.callback(closing.close)
        name = f"{link.host_prefix}{number}"
        self.address = f"10.8.0.{number}"
        node = link.join(name, self.address, f"fd08::{number}")
        closing.callback(node.delete)
        super().__init__(link.cluster.plane, name, node, closing)
        if pod:
            self.pod_address = self.add_pod(Namespace(f"pod{number}", link.tag), f"10.8.{number}")
        pools = self.folder / "pools.yaml"
        pools.write_text(link.pools)
        self.agent.arguments = ["--announce", str(pools)]

    def vips(self) -> dict[str, dict[str, Any]]:
        return {row["address"]: row for row in self.agent.json("vip", "list")}

    def state(self, address: str) -> str:
        return str(self.vips().get(address, {}).get("state", ""))

    def pull_cable(self) -> None:
        """Make the link to the node lose all frames, without an event."""
        self.link.switch.ip(f"link set {self.name} down")

    def plug_in(self) -> None:
        self.link.switch.ip(f"link set {self.name} up")

    def power_off(self) -> None:
        """Kill the node without a shutdown: the link, then every process."""
        self.pull_cable()
        self.proxy.close()
        for pid in self.node.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.agent.process is not None:
            self.agent.process.wait()


class Link:
    """A switch with nodes and a client."""

    def __init__(self, cluster: Cluster, tag: str = "an-", *, pools: str = POOLS, host_prefix: str = "host") -> None:
        self.cluster, self.tag, self.pools, self.host_prefix = cluster, tag, pools, host_prefix
        self.closing = contextlib.ExitStack()
        give_rights(cluster)
        self.switch = Namespace("switch", tag)
        self.closing.callback(self.switch.delete)
        self.switch.ip("link add br0 type bridge", "link set br0 up")
        self.client = self.join("client", "10.8.0.200", "fd08::200")
        self.closing.callback(self.client.delete)
        self.hosts: dict[str, Host] = {}

    def join(self, role: str, ipv4: str, ipv6: str) -> Namespace:
        space = Namespace(role, self.tag)
        veth(space, "eth0", self.switch, role)
        self.switch.ip(f"link set {role} master br0")
        space.ip(f"addr add {ipv4}/24 dev eth0", f"addr add {ipv6}/64 dev eth0 nodad")
        space.checksum_offload_off("eth0")
        return space

    def add_host(self, number: int, *, pod: bool = True) -> Host:
        host = Host(self, number, pod=pod)
        self.hosts[host.name] = host
        for other in self.hosts.values():
            if pod and other is not host:
                host.node.ip(f"route add 10.8.{other.number}.0/24 via 10.8.0.{other.number}")
                other.node.ip(f"route add 10.8.{number}.0/24 via 10.8.0.{number}")
        self.cluster.add_node(host.name, host.address)
        self.closing.callback(self._remove_node, host)
        return host

    def _remove_node(self, host: Host) -> None:
        self.cluster.plane.send("DELETE", f"/api/v1/nodes/{host.name}")

    def serve(self, name: str, *addresses: str, hosts: Sequence[Host], **spec: Any) -> None:
        """Create a Service with these addresses, and endpoints on these nodes."""
        self.cluster.add_service(name, selector=False, type="LoadBalancer", **spec)
        self.set_endpoints(name, hosts)
        status = {"status": {"loadBalancer": {"ingress": [{"ip": address} for address in addresses]}}}
        path = f"/api/v1/namespaces/default/services/{name}/status"
        self.cluster.plane.ask("PATCH", path, status, MERGE)

    def set_endpoints(self, name: str, hosts: Sequence[Host]) -> None:
        endpoints = [
            {"addresses": [host.pod_address], "conditions": {"ready": True}, "nodeName": host.name} for host in hosts
        ]
        self.cluster.put_slice(f"{name}-own", name, endpoints=endpoints)

    def cordon(self, host: Host, *, undo: bool = False) -> None:
        spec = {"spec": {"unschedulable": None if undo else True}}
        self.cluster.plane.ask("PATCH", f"/api/v1/nodes/{host.name}", spec, MERGE)

    def talkers(self, address: str) -> traffic.Talkers:
        """Return open connections of the client: with forty each of two pods has some."""
        found = traffic.Talkers(self.client, address, 80, 40)
        self.closing.callback(found.close)
        return found

    def lease(self, address: str) -> dict[str, Any]:
        return self._lease(f"lbagent-vip-{address}")

    def node_lease(self, host: Host) -> dict[str, Any]:
        return self._lease(f"lbagent-node-{host.name}")

    def _lease(self, name: str) -> dict[str, Any]:
        status, found = self.cluster.plane.send("GET", f"{LEASES}/{name}")
        return dict(found["spec"]) if status == 200 else {}

    def leader(self, address: str) -> Host | None:
        """Return the node that reports to announce an address. The nodes are read in sequence, so the address may move in between."""
        for _ in range(5):
            found = [host for host in self.hosts.values() if _runs(host) and host.state(address) == "announced"]
            if len(found) < 2:
                return found[0] if found else None
            time.sleep(0.3)
        raise AssertionError([host.name for host in found])

    def until_led(self, address: str, *, by: Host | None = None) -> Host:
        wait_for(lambda: (found := self.leader(address)) and found is (by or found), f"a leader of {address}", 60)
        found = self.leader(address)
        assert found is not None
        return found

    def mac_of(self, address: str) -> str:
        """Return the client's neighbour entry of an address."""
        argv = ["ip", "-n", self.client.name, "-j", "neigh", "show", address, "dev", "eth0"]
        found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        return str(found[0].get("lladdr", "")) if found else ""

    def load(self, *addresses: str, timeout_s: float = 1.0) -> traffic.Load:
        asks = [partial(traffic.http_get, address, 80, timeout_s=timeout_s) for address in addresses]
        return traffic.Load(self.client, asks, 2, 0.01)

    def close(self) -> None:
        for host in self.hosts.values():
            host.agent.remove()
        self.closing.close()
        found = self.cluster.plane.ask("GET", f"{LEASES}?labelSelector=lbagent.io/lease")
        for item in found["items"]:
            self.cluster.plane.send("DELETE", f"{LEASES}/{item['metadata']['name']}")


def _runs(host: Host) -> bool:
    return host.agent.process is not None and host.agent.process.poll() is None
