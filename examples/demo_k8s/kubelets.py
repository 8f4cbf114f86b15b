"""The kubelets of the demo: a Pod gets a node, a namespace with a server, and addresses, and becomes ready; a deleted Pod ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.kube_api.cluster import HOME, NODE, Cluster
from tests.kube_api.control_plane import Obj
from tests.lab.netns import LabError
from tests.lab.topology import Backend, Lab, end

STOP_S = 1.0  # from a Pod's deletion to the end of its server, as with a preStop hook
SETTLE_S = 30
POLL_S = 0.1
REMOTE_NODES = {"node-1": "b1", "node-2": "b2"}


@dataclass
class Place:
    """Where a Pod runs."""

    node: str
    backend: Backend


class Kubelets:
    """The kubelets of all nodes. The first Pod runs on the agent's node, the next on the others, in turn."""

    def __init__(self, lab: Lab, cluster: Cluster) -> None:
        """Create the Node objects of the other nodes."""
        self.lab, self.cluster, self.plane = lab, cluster, cluster.plane
        self.places: dict[str, Place] = {}
        self._turn = 0
        for name, role in REMOTE_NODES.items():
            cluster.add_node(name, lab.backends[role].ipv4)

    def pods(self) -> Iterator[Obj]:
        """Yield all Pods."""
        yield from self.plane.ask("GET", f"{HOME}/pods")["items"]

    def settle(self, count: int) -> None:
        """Work until `count` Pods run and no other is left. Raises LabError after a time-out."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            pods = list(self.pods())
            going = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
            for pod in pods:
                if pod not in going and not pod["spec"].get("nodeName"):
                    self._start(pod["metadata"]["name"])
            if going:
                time.sleep(STOP_S)
            for pod in going:
                self._stop(pod["metadata"]["name"])
            if len(pods) == count == len(self.places) and not going:
                return
            time.sleep(POLL_S)
        raise LabError(f"{count} Pods did not start; running are {sorted(self.places)}")

    def _start(self, name: str) -> None:
        place = self._new_place(f"p{self._turn + 1}")
        target = {"apiVersion": "v1", "kind": "Node", "name": place.node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.plane.ask("POST", f"{HOME}/pods/{name}/binding", binding)
        self.places[name] = place
        self.cluster.set_pod(name, (place.backend.ipv4, place.backend.ipv6), ready=True)

    def _new_place(self, label: str) -> Place:
        """Start a server: a pod of the agent's node is a namespace with a device, a pod of another node is an address there."""
        number, self._turn = self._turn, self._turn + 1
        nodes = [NODE, *REMOTE_NODES]
        node = nodes[number % len(nodes)]
        if node != NODE:
            return Place(node, self.lab.serve(REMOTE_NODES[node], label, host=10 + number))
        self.lab.add_pod(label, f"pod{10 + number}", f"10.244.{10 + number}", f"fd44:{10 + number}")
        return Place(node, self.lab.serve(label))

    def _stop(self, name: str) -> None:
        place = self.places.pop(name)
        assert place.backend.process is not None
        end(place.backend.process)
        self.cluster.delete_pod(name)
