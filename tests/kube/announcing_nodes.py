"""Nodes with agents on one link, before a control plane, and a client on the link: who answers for an address is asked of the wire."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.kube.cluster import Cluster, collection
from tests.kube.proxy import Proxy
from tests.lab import traffic
from tests.lab.agent import KubeAgent
from tests.lab.netns import Namespace, run, veth, wait_for
from tests.lab.topology import ROOT, end

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
RIGHTS = ROOT / "deploy" / "cloud" / "announce.yaml"
POOLS = """\
pools:
- {name: lan, addresses: [10.8.0.100-10.8.0.150, "fd08::100/120"], announce: [l2]}
l2: {restartGrace: 8s}
"""


def give_rights(cluster: Cluster) -> None:
    """Let the agent's account write Leases."""
    for obj in yaml.safe_load_all(RIGHTS.read_text()):
        cluster.plane.send("POST", collection(obj), obj)


def take_rights(cluster: Cluster) -> None:
    """Take that away."""
    for obj in yaml.safe_load_all(RIGHTS.read_text()):
        cluster.plane.send("DELETE", f"{collection(obj)}/{obj['metadata']['name']}")


class Host:
    """A node: a namespace with a device on the link, a pod, an agent, and a proxy to the API server."""

    def __init__(self, link: Link, number: int) -> None:
        self.link, self.number, self.name = link, number, f"host{number}"
        self.closing = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix=f"lbagent-host-{os.getpid()}-"))
        self.closing.callback(shutil.rmtree, self.folder, ignore_errors=True)
        root = self.folder / "bpf"
        root.mkdir()
        run("mount", "-t", "bpf", "bpf", str(root))
        self.closing.callback(run, "umount", "-l", str(root))
        self.bpffs, self.socket = root / "lbagent", self.folder / "agent.sock"
        self.node = link.join(self.name, f"10.8.0.{number}", f"fd08::{number}")
        self.closing.callback(self.node.delete)
        self.node.sysctl("ipv4/ip_forward", 1)
        self.node.sysctl("ipv6/conf/all/forwarding", 1)
        self.pod_address = f"10.8.{number}.2"
        self._add_pod()
        self.proxy = Proxy(link.cluster.plane.namespace, 6443, listen=self.node)
        self.closing.callback(self.proxy.close)
        link.cluster.plane.kubeconfig(link.cluster.plane.lasting_token, self.folder / "kubeconfig", self.proxy.port)
        pools = self.folder / "pools.yaml"
        pools.write_text(POOLS)
        self.agent = KubeAgent(self, self.folder, attach="tc", arguments=["--announce", str(pools)])  # type: ignore[arg-type]
        self.agent.name, self.agent.devices = self.name, ["eth0"]

    def _add_pod(self) -> None:
        self.pod = Namespace(f"pod{self.number}", self.link.tag)
        self.closing.callback(self.pod.delete)
        veth(self.pod, "eth0", self.node, "pod0")
        self.pod.ip(f"addr add {self.pod_address}/24 dev eth0", f"route add default via 10.8.{self.number}.1")
        self.node.ip(f"addr add 10.8.{self.number}.1/24 dev pod0")
        argv = [sys.executable, "-m", "tests.lab.server", self.name, "--http", "8080", "--dns", "5353"]
        process = self.pod.popen([*argv, "--ipv4", self.pod_address, "--ipv6", "::1"], stdout=subprocess.PIPE, cwd=ROOT)
        self.closing.callback(end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def vips(self) -> dict[str, dict[str, Any]]:
        return {row["address"]: row for row in self.agent.json("vip", "list")}

    def state(self, address: str) -> str:
        return str(self.vips().get(address, {}).get("state", ""))

    def pull_cable(self) -> None:
        """Let the link to the node die without a word: frames are lost on the way."""
        self.link.switch.ip(f"link set {self.name} down")

    def plug_in(self) -> None:
        self.link.switch.ip(f"link set {self.name} up")


class Link:
    """A switch with nodes and a client."""

    def __init__(self, cluster: Cluster, tag: str = "an-") -> None:
        self.cluster, self.tag = cluster, tag
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

    def add_host(self, number: int) -> Host:
        host = Host(self, number)
        self.closing.callback(host.closing.close)
        self.hosts[host.name] = host
        for other in self.hosts.values():
            if other is not host:
                host.node.ip(f"route add 10.8.{other.number}.0/24 via 10.8.0.{other.number}")
                other.node.ip(f"route add 10.8.{number}.0/24 via 10.8.0.{number}")
        self.cluster.add_node(host.name, f"10.8.0.{number}")
        self.closing.callback(self._remove_node, host)
        return host

    def _remove_node(self, host: Host) -> None:
        self.cluster.plane.send("DELETE", f"/api/v1/nodes/{host.name}")

    def serve(self, name: str, *addresses: str, hosts: Sequence[Host], **spec: Any) -> None:
        """Make a Service with these addresses, and endpoints on these nodes."""
        self.cluster.add_service(name, selector=False, type="LoadBalancer", **spec)
        self.set_endpoints(name, hosts)
        status = {"status": {"loadBalancer": {"ingress": [{"ip": address} for address in addresses]}}}
        path = f"/api/v1/namespaces/default/services/{name}/status"
        self.cluster.plane.ask("PATCH", path, status, "application/merge-patch+json")

    def set_endpoints(self, name: str, hosts: Sequence[Host]) -> None:
        endpoints = [
            {"addresses": [host.pod_address], "conditions": {"ready": True}, "nodeName": host.name} for host in hosts
        ]
        self.cluster.put_slice(f"{name}-own", name, endpoints=endpoints)

    def lease(self, address: str) -> dict[str, Any]:
        status, found = self.cluster.plane.send("GET", f"{LEASES}/lbagent-vip-{address}")
        return dict(found["spec"]) if status == 200 else {}

    def leader(self, address: str) -> Host | None:
        """Return the node that says it announces an address. They are asked one after the other, so it may move meanwhile."""
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
        """Return what the client's kernel knows of an address."""
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
