"""The environment: a control plane whose audit log has every write, and a LAN with nodes, a backend's machine and a client.

The API server is a host of the LAN, so a node whose cable is pulled loses it too. The backend is not on an announcing node: when a
node dies, the address is measured, not the endpoint.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.cloud import answering
from bench.kube.kube_node import open_to_nodes
from tests.kube_api.cluster import Cluster
from tests.kube_api.control_plane import ADVERTISED, PORT, ControlPlane
from tests.kube_api.programs import Programs
from tests.lab.netns import Namespace, veth
from tests.lab.topology import ROOT, LabError, end

BITS, NET = 20, "10.8.0"  # 10.8.0.0/20: 10.8.4-7.x are the addresses of Services
NODES, WORKER, CLIENT, SERVER = 3, f"{NET}.20", f"{NET}.200", f"{NET}.240"
PODS = "10.12.0.0/16"  # behind the worker: each Service has its own backend
POOL = [f"10.8.{third}.1-10.8.{third}.250" for third in (4, 5, 6, 7)]
SERVICES, SLICES = "/api/v1/namespaces/default/services", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
ENDPOINTS = "/api/v1/namespaces/default/endpoints"
WRITES = ["create", "update", "patch", "delete"]
AUDIT = {
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "verbs": WRITES}, {"level": "None"}],
}  # fmt: skip
OTHER_TOKEN, OTHER_USER = "bench-other", "metallb"
Obj = dict[str, Any]


class BenchPlane(ControlPlane):
    """A control plane with an account for MetalLB, and a log of all writes."""

    def _prepare(self) -> None:
        super()._prepare()
        with (self.folder / "tokens.csv").open("a") as tokens:
            tokens.write(f'{OTHER_TOKEN},{OTHER_USER},other,"system:masters"\n')
        (self.folder / "audit.yaml").write_text(json.dumps(AUDIT))

    def writes(self) -> Iterator[Obj]:
        """Yield every requested write until now, in order."""
        for line in self.audit.read_text().splitlines() if self.audit.exists() else ():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


class Lan:
    """A switch with nodes, the backend's machine, the API server and a client; a context manager."""

    def __init__(self, plane: ControlPlane, tag: str, nodes: int = NODES) -> None:
        """Create it. `tag` distinguishes the machines of two LANs of one run."""
        self.plane, self.tag, self.cluster = plane, tag, Cluster(plane)
        self.closing = contextlib.ExitStack()
        self.spaces: dict[str, Namespace] = {}
        self._names: list[str] = []
        try:
            self._make(nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove it, with the objects created through it."""
        self.closing.close()

    def _make(self, nodes: int) -> None:
        self.switch = Namespace("switch", self.tag)
        self.closing.callback(self.switch.delete)
        self.switch.ip("link add br0 type bridge mcast_snooping 0", "link set br0 up")
        self.client = self.join("client", CLIENT)
        self.worker = self.join("worker", WORKER)
        self._join_server()
        self._serve()
        for number in range(1, nodes + 1):
            name = f"{self.tag}node-{number}"
            routes = (f"route add {ADVERTISED} via {SERVER}", f"route add {PODS} via {WORKER}")
            self.join(name, f"{NET}.{number}").ip(*routes)
            self.cluster.add_node(name, f"{NET}.{number}")
            self.closing.callback(self.plane.send, "DELETE", f"/api/v1/nodes/{name}")
            self._names.append(name)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return list(self._names)

    def join(self, role: str, address: str) -> Namespace:
        """Make a machine on the LAN."""
        space = self.spaces[role] = Namespace(role, "" if role.startswith(self.tag) else self.tag)
        self.closing.callback(space.delete)
        veth(space, "eth0", self.switch, role)
        self.switch.ip(f"link set {role} master br0")
        space.ip(f"addr add {address}/{BITS} dev eth0")
        space.checksum_offload_off("eth0")
        space.sysctl("ipv4/ip_forward", 1)
        space.sysctl("ipv4/conf/all/send_redirects", 0)
        space.sysctl("ipv4/conf/eth0/send_redirects", 0)
        return space

    def _join_server(self) -> None:
        there = self.plane.namespace
        veth(there, "lan", self.switch, "server")
        self.closing.callback(there.ip, "link del lan")
        self.switch.ip("link set server master br0")
        there.ip(f"addr add {SERVER}/{BITS} dev lan")

    def _serve(self) -> None:
        self.worker.ip(f"route add local {PODS} dev lo")
        argv = [sys.executable, "-m", "bench.cloud.answering"]
        process = self.worker.popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
        self.closing.callback(end, process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise LabError("the backend did not start")

    # --- what happens to machines ---

    def pull_cable(self, name: str) -> None:
        """Remove the carrier."""
        self.switch.ip(f"link set {name} down")

    def plug_in(self, name: str) -> None:
        """Restore the carrier."""
        self.switch.ip(f"link set {name} up")

    def mac(self, name: str) -> bytes:
        """Return a machine's MAC address."""
        return self.spaces[name].mac("eth0")

    def kubeconfig(self, token: str, path: Path) -> Path:
        """Write a kubeconfig for a node: the server by its address on the LAN."""
        self.plane.kubeconfig(token, path, PORT)
        path.write_text(path.read_text().replace("https://127.0.0.1:", f"https://{ADVERTISED}:"))
        return path

    # --- objects ---

    def add_backends(self, name: str) -> None:
        """Create a Service's EndpointSlice (for lbagent) and Endpoints (for MetalLB 0.13)."""
        for path, obj in backends(name, 0):
            self.plane.ask("POST", path, obj)

    def remove_backends(self, name: str) -> None:
        """Delete them."""
        for path, obj in backends(name, 0):
            self.plane.send("DELETE", f"{path}/{obj['metadata']['name']}")

    def set_cordon(self, name: str, on: bool) -> None:
        """Cordon a node, or uncordon it."""
        patch = {"spec": {"unschedulable": on or None}}
        self.plane.ask("PATCH", f"/api/v1/nodes/{name}", patch, "application/merge-patch+json")


def backends(name: str, number: int) -> list[tuple[str, Obj]]:
    """Return the objects of a Service's backend, with the paths they are posted to; another backend for each number."""
    address = f"10.12.{number >> 8}.{number & 255}"
    meta = {"name": name, "namespace": "default"}
    labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "bench.lbagent.io"}
    port = {"name": "http", "port": answering.PORT, "protocol": "TCP"}
    piece = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta | {"name": f"{name}-a", "labels": labels},
        "addressType": "IPv4", "ports": [port], "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }  # fmt: skip
    subsets = [{"addresses": [{"ip": address}], "ports": [port]}]
    return [
        (SLICES, piece),
        (ENDPOINTS, {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": subsets}),
    ]


def service(name: str, **annotations: str) -> Obj:
    """Return a Service of type LoadBalancer."""
    port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": answering.PORT}
    meta = {"name": name, "namespace": "default", "annotations": annotations}
    spec = {"type": "LoadBalancer", "ports": [port], "allocateLoadBalancerNodePorts": False}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


@contextlib.contextmanager
def control_plane(programs: Programs, folder: Path) -> Iterator[BenchPlane]:
    """Run an API server that hosts of a LAN can reach; no controllers."""
    plane = BenchPlane(programs, folder / "kube", "bench")
    try:
        plane.start()
        Cluster(plane).prepare(node=False)
        open_to_nodes(plane)
        yield plane
    finally:
        plane.close()
