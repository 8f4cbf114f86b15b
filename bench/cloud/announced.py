"""lbagent on a LAN: its controller next to the API server, and an agent on each announcing node."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from bench.cloud.stage import POOL, Lan, Obj
from bench.kube.kube_node import resident_mib
from tests.kube_api import cloud_process
from tests.kube_api.announcing_nodes import LEASES, give_rights
from tests.kube_api.cloud_process import CloudProcess
from tests.kube_api.control_plane import AGENT, PORT
from tests.lab.agent import KubeAgent
from tests.lab.scratch import scratch_folder

POOLS: Obj = {"pools": [{"name": "lan", "addresses": POOL, "announce": ["l2"]}]}
CONTROLLER = "system:serviceaccount:kube-system:lbagent-cloud"
LIVES_S = 4.0  # a node that returns: two renewals and a check of the others


class BenchNode:
    """A machine of the LAN with an agent, in the form that KubeAgent needs."""

    def __init__(self, lan: Lan, name: str, pools: Obj) -> None:
        self.node, self.closing = lan.spaces[name], lan.closing
        self.folder, self._root = scratch_folder(self.closing, "host")
        self.bpffs, self.socket = self._root / "lbagent", self.folder / "agent.sock"
        lan.kubeconfig(lan.plane.lasting_token, self.folder / "kubeconfig")
        self.agent = KubeAgent(self, self.folder, attach="tc")  # type: ignore[arg-type]
        self.agent.name, self.agent.devices = name, ["eth0"]
        path = self.folder / "pools.yaml"
        cloud_process.yaml.safe_dump(pools, path.open("w"))
        self.agent.arguments = ["--announce", str(path)]


class Lbagent:
    """The measured system, for gaps.py and many.py."""

    name = "lbagent"
    joins_s = LIVES_S

    def __init__(self, lan: Lan, folder: Path, pools: Obj | None = None) -> None:
        """`pools` is the pools file."""
        self.lan, self.folder, self.pools = lan, folder, pools or POOLS
        self.nodes: dict[str, BenchNode] = {}
        self.controller: CloudProcess | None = None

    def start(self) -> None:
        """Start everything; return when the agents are ready."""
        give_rights(self.lan.cluster)
        cloud_process.give_rights(self.lan.plane)
        self.lan.closing.callback(self._forget_leases)
        self.start_controller()
        self.nodes = {name: BenchNode(self.lan, name, self.pools) for name in self.lan.nodes}
        for node in self.nodes.values():
            self.lan.closing.callback(node.agent.remove)
        for node in self.nodes.values():
            node.agent.start(wait=False)
        for node in self.nodes.values():
            node.agent.wait_ready()

    def start_controller(self) -> None:
        """Start the controller, without an election."""
        if self.controller is None:
            token = self.lan.plane.account_token(cloud_process.ACCOUNT)
            config = self.lan.plane.kubeconfig(token, self.folder / "cloud.kubeconfig", PORT)
            process = CloudProcess(self.folder, config, "pool", self.pools, name="bench")
            process.argv = self.lan.plane.namespace.command(process.argv)
            self.lan.closing.callback(process.close)
            self.controller = process
        self.controller.start()

    def restart_controller(self) -> None:
        """Kill the controller, and restart it."""
        assert self.controller is not None
        self.controller.kill()
        self.start_controller()

    def controller_mib(self) -> float:
        """Return the controller's resident memory."""
        assert self.controller is not None
        assert self.controller.process is not None
        return resident_mib(self.controller.process.pid)

    # --- events of nodes ---

    def kill(self, name: str) -> None:
        """Kill the agent; its programs stay."""
        self.nodes[name].agent.kill()

    def stop(self, name: str) -> None:
        """Stop the agent as systemd or the kubelet does."""
        self.nodes[name].agent.stop()

    def start_node(self, name: str) -> None:
        """Start the agent again; return when it is ready."""
        self.nodes[name].agent.start()

    def power_off(self, name: str) -> None:
        """Make a machine fail silently."""
        self.lan.pull_cable(name)
        for pid in self.nodes[name].node.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process = self.nodes[name].agent.process
        assert process is not None
        process.wait()

    def power_on(self, name: str) -> None:
        """Boot it: nothing of its programs is left."""
        self.nodes[name].agent.remove()
        self.lan.plug_in(name)
        self.start_node(name)

    # --- its writes ---

    def is_controller(self, user: str) -> bool:
        """Return whether an account is the controller's."""
        return user == CONTROLLER

    def is_node(self, user: str) -> bool:
        """Return whether an account is the agents'."""
        return user == AGENT

    def _forget_leases(self) -> None:
        found = self.lan.plane.ask("GET", f"{LEASES}?labelSelector=lbagent.io/lease")
        for item in found["items"]:
            self.lan.plane.send("DELETE", f"{LEASES}/{item['metadata']['name']}")
