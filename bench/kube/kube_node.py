"""A node with the API server: a laboratory with two pods (client p1, server b3) and a link to the server's namespace."""

from __future__ import annotations

import compileall
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.kube.bulk_objects import ROUTE
from bench.kube.pod_client import Address
from tests.kube_api.control_plane import ADVERTISED, PORT, ControlPlane
from tests.lab.agent import KubeAgent
from tests.lab.netns import Namespace, run, veth
from tests.lab.topology import ROOT, Lab, LabError, end

POD = "10.244.0.2"  # b3, which runs the server
FORWARD = f"""table ip front {{
chain in {{ type nat hook prerouting priority dstnat; ip daddr {ADVERTISED} tcp dport {PORT} dnat to 127.0.0.1; }}
}}
"""
SETTLE_S = 3.0
START_S = 600.0
LOOK_S = 1.0  # between two checks whether it still runs


def open_to_nodes(plane: ControlPlane) -> None:
    """Make the API server, which listens on loopback, reachable for nodes by its advertised address."""
    plane.namespace.ip(f"addr add {ADVERTISED}/32 dev lo")
    plane.namespace.sysctl("ipv4/conf/all/route_localnet", 1)
    run(*plane.namespace.command(["nft", "-f", "-"]), text=FORWARD)


class KubeNode:
    """One laboratory as a node; created inside `with Lab(...)`."""

    def __init__(self, lab: Lab, plane: ControlPlane | None = None, number: int = 0) -> None:
        """Add the client's pod, start the server's processes, and join the API server's namespace."""
        self.lab, self.number = lab, number
        lab.add_pod("p1", "pod4", "10.244.1", "fd45")
        lab.node.ip(ROUTE)
        serve(lab)
        if plane is not None:
            self._join(plane)

    @property
    def client(self) -> Namespace:
        """Where the client runs."""
        return self.lab.namespaces["p1"]

    def paths(self, who: str, *ways: tuple[str, Address]) -> dict[str, tuple[Namespace, Address]]:
        """Return paths from the client's pod, named after the proxy of this node."""
        return {f"{who} {name}": (self.client, to) for name, to in ways}

    def _join(self, plane: ControlPlane) -> None:
        here, there = f"10.78.{self.number}.2", f"10.78.{self.number}.1"
        veth(self.lab.node, "api0", plane.namespace, f"n{self.number}")
        self.lab.node.ip(f"addr add {here}/24 dev api0", f"route add {ADVERTISED} via {there}")
        plane.namespace.ip(f"addr add {there}/24 dev n{self.number}")
        config = plane.kubeconfig(plane.lasting_token, self.kubeconfig, PORT)
        config.write_text(config.read_text().replace("https://127.0.0.1:", f"https://{ADVERTISED}:"))

    @property
    def kubeconfig(self) -> Path:
        """The file with the credentials of the agent's account, for the agent and for kube-proxy."""
        return self.lab.folder / "kubeconfig"


def serve(lab: Lab) -> None:
    """Start the processes of the server's pod."""
    argv = [sys.executable, "-m", "bench.kube.pod_server", POD]
    process = lab.namespaces["b3"].popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
    lab.closing.callback(end, process)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise LabError("the pod's server did not start")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


class AgentOnNode(KubeAgent):
    """The agent of a node, and the time of its start."""

    def __init__(self, node: KubeNode, arguments: Sequence[str] = ()) -> None:
        """Use the laboratory's devices, attached by tc."""
        super().__init__(node.lab, node.lab.folder, attach="tc", arguments=arguments)
        self.devices.append("api0")
        self.started_s = self.start_cpu_s = 0.0

    def start_timed(self) -> None:
        """Start it and wait until everything is in the kernel. Its modules are compiled before, as in an installed package.

        It reports that itself (sd_notify(3)): each request of `status` would add 4 ms to the measured time.
        """
        compileall.compile_dir(ROOT / "lbagent", quiet=1)
        path = self.lab.folder / "notify.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.bind(str(path))
            told.settimeout(LOOK_S)
            began = time.monotonic()
            self.start(wait=False, env={"NOTIFY_SOCKET": str(path)})
            while not self._says_ready(told):
                if time.monotonic() - began > START_S:
                    raise LabError(f"the agent was not ready after {START_S:g} s\n{self.tail()}")
            self.started_s = time.monotonic() - began
            self.start_cpu_s = cpu_s(self.pid)
        path.unlink()
        self.wait_ready()

    def _says_ready(self, told: socket.socket) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise LabError(f"the agent ended with {self.process.returncode}\n{self.tail()}")
        try:
            return "READY=1" in told.recv(4096).decode().split("\n")
        except TimeoutError:
            return False

    def settled_mib(self) -> float:
        """Return its memory when the work is done."""
        time.sleep(SETTLE_S)
        return resident_mib(self.pid)
