"""`sudo make demo-k8s`: the agent follows a real kube-apiserver while Deployments are scaled, Pods start and end, and the server dies.

Every line with `ok` is a check; the exit code is 1 if a check failed. Real parts: kube-apiserver, etcd, the Deployment,
ReplicaSet and EndpointSlice controllers, the agent, its programs, HTTP servers and clients. The kubelets are the demo's own.
The demo removes everything that it created, also after Ctrl-C; the programs built from Go modules stay in the cache.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "examples" / "demo")]

from kubelets import Kubelets  # noqa: E402
from show import Show  # noqa: E402
from stage import present  # noqa: E402

from tests.kube_api.cluster import Cluster  # noqa: E402
from tests.kube_api.control_plane import ADVERTISED, MERGE, PORT, ControlPlane, Refused  # noqa: E402
from tests.kube_api.programs import BuildFailed, Missing, build_programs  # noqa: E402
from tests.kube_api.proxy import Proxy  # noqa: E402
from tests.lab import traffic  # noqa: E402
from tests.lab.agent import KubeAgent  # noqa: E402
from tests.lab.netns import wait_for  # noqa: E402
from tests.lab.topology import Lab  # noqa: E402

VIPS = ("10.96.0.10", "fd00:10:96::10")
NODE_PORT, NODE_ADDRESS = 30080, "10.77.0.1"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
REQUESTS = 200
MORE = 200  # requests after each change
REPLICAS = 3
MAP = """client 10.77.0.2 ──wan── node (demo-node: the agent; its pods are namespaces)
                              ──lan1── node-1      kube-apiserver, etcd and the
                              ──lan2── node-2      controllers are in another namespace"""


class Demo:
    """The chapters of the demo."""

    def __init__(self, lab: Lab, plane: ControlPlane, show: Show) -> None:
        self.lab, self.plane, self.show = lab, plane, show
        self.cluster = Cluster(plane)
        self.agent = KubeAgent(lab, lab.folder, attach=os.environ.get("ATTACH", "xdp"))
        self.agent.devices.append("mgmt")

    # --- what the chapters share ---

    def ask(self, count: int = REQUESTS) -> Counter[str]:
        """Make HTTP requests to the ClusterIPs, half of them over IPv6, and some to the NodePort."""
        out: Counter[str] = Counter()
        for vip in VIPS:
            out += traffic.spread(self.lab.client, count // 2, partial(traffic.http_get, vip, 80))
        return out + traffic.spread(self.lab.client, 10, partial(traffic.http_get, NODE_ADDRESS, NODE_PORT))

    @contextlib.contextmanager
    def under_load(self, what: str) -> Iterator[traffic.Load]:
        """Make requests during the block; claim that none failed."""
        asks = [partial(traffic.http_get, vip, 80) for vip in VIPS]
        with traffic.Load(self.lab.client, asks, workers=4, pause_s=0.005) as load:
            yield load
            load.wait_more(MORE)
        tally = load.tally
        self.show.bars(f"{tally.total} requests meanwhile", tally.answered)
        self.show.claim(not tally.failures, f"0 requests failed while {what}", f"{tally.failures[:3]}")

    def backends(self) -> set[str]:
        """Return the addresses of Pods that get new flows."""
        listed: list[dict[str, Any]] = self.agent.json("backend", "list", "--service", "default/web")
        return {item["address"] for item in listed if item["state"] == "active"}

    def scale(self, count: int) -> None:
        """Set the number of replicas; return when the Pods run and the maps have them."""
        self.show.command(f"kubectl scale deployment web --replicas {count}")
        self.plane.ask("PATCH", f"{DEPLOYMENTS}/web", {"spec": {"replicas": count}}, MERGE)
        self.kubelets.settle(count)
        self.await_backends()

    def await_backends(self, *absent: str) -> None:
        """Wait until the maps have every Pod except those with these names."""
        places = {name: place.backend for name, place in self.kubelets.places.items() if name not in absent}
        wanted = {f"{each.ipv4}:8080/TCP" for each in places.values()}
        wanted |= {f"[{each.ipv6}]:8080/TCP" for each in places.values()}
        wait_for(lambda: self.backends() == wanted, "the Pods in the maps", 30)

    # --- chapters ---

    def set_up(self) -> None:
        """Control plane, nodes, agent, a Service."""
        self.show.title("A control plane, three nodes, the agent")
        self.show.block(MAP)
        self.plane.start()
        self.cluster.prepare()
        self.plane.start_controllers("deployment-controller", "replicaset-controller")
        self.kubelets = Kubelets(self.lab, self.cluster)
        self.plane.ask("PATCH", "/api/v1/nodes/demo-node/status", node_status(NODE_ADDRESS), MERGE)
        self.lab.client.ip(f"route add {VIPS[1]}/128 via fd77::1")
        self.lab.node.ip("link set lo up")
        self.lab.join(self.plane.namespace, "e0", "mgmt", "192.0.2", "fd77:3", 24)
        self.plane.namespace.ip(f"addr add {ADVERTISED}/24 dev e0")  # the endpoint of Service default/kubernetes
        proxy = Proxy(self.plane.namespace, PORT, listen=self.lab.node)
        self.lab.closing.callback(proxy.close)
        self.plane.kubeconfig(self.plane.lasting_token, self.lab.folder / "kubeconfig", proxy.port)
        self.show.command("kubectl create -f web.yaml    # a Deployment, a Service of type NodePort, both families")
        ports = [{"port": 80, "targetPort": 8080, "nodePort": NODE_PORT, "protocol": "TCP"}]
        families = {"ipFamilyPolicy": "RequireDualStack", "clusterIP": VIPS[0], "clusterIPs": list(VIPS)}
        self.cluster.add_service("web", type="NodePort", ports=ports, **families)
        self.plane.ask("POST", DEPLOYMENTS, deployment("web", REPLICAS))
        self.kubelets.settle(REPLICAS)
        self.agent.start()
        self.await_backends()
        self.show.lbagent(self.agent, "svc", "list")

    def spread(self) -> None:
        """Requests to the ClusterIPs and the NodePort."""
        self.show.title(f"{REQUESTS} HTTP requests to the ClusterIPs, 10 to the NodePort")
        answered = self.ask()
        self.show.bars("answered by", answered)
        self.show.claim(
            sum(answered.values()) == REQUESTS + 10 and len(answered) == REPLICAS, "every Pod answers", str(answered)
        )

    def scale_under_load(self) -> None:
        """The number of replicas changes."""
        self.show.title("The Deployment is scaled during requests")
        with self.under_load("it was scaled to 6 and to 2") as load:
            self.scale(6)
            load.wait_more(MORE)
            self.scale(2)

    def unready(self) -> None:
        """A readiness probe fails."""
        self.show.title("A Pod is not ready for a while")
        name, place = next(iter(self.kubelets.places.items()))
        addresses = (place.backend.ipv4, place.backend.ipv6)
        with self.under_load("it was unready"):
            self.cluster.set_pod(name, addresses, ready=False)
            self.await_backends(name)
            rest = self.ask(60)
            self.show.claim(place.backend.name not in rest, f"no new request goes to {place.backend.name}", str(rest))
            self.cluster.set_pod(name, addresses, ready=True)
            self.await_backends()

    def maintenance(self) -> None:
        """The operator takes a Pod out on this node; the Pod gets an Event."""
        self.show.title("An operator takes a Pod out on this node")
        name, place = next(iter(self.kubelets.places.items()))
        self.show.lbagent(self.agent, "backend", "set-state", "maintenance", f"pod/default/{name}")
        rest = self.ask(60)
        self.show.claim(place.backend.name not in rest, f"no new request goes to {place.backend.name}", str(rest))
        wait_for(self.cluster.events, "the Event", 20)
        self.show.block("\n".join(f"{event['reason']}  {event['message']}" for event in self.cluster.events()))
        self.show.lbagent(self.agent, "backend", "clear-state", f"pod/default/{name}")

    def server_dies(self) -> None:
        """SIGKILL of the API server with etcd, changes after the restart."""
        self.show.title("The API server is killed, and restarted")
        with self.under_load("the API server was down, and after it") as load:
            self.show.command("kill -9 kube-apiserver etcd")
            self.plane.kill()
            load.wait_more(2 * MORE)
            self.show.say(
                f"{load.tally.total} requests so far, {len(load.tally.failures)} failed; the maps are as they were"
            )
            self.plane.start()
            self.scale(4)
        self.ask(60)

    def agent_dies(self) -> None:
        """SIGKILL of the agent, with a change before the restart."""
        self.show.title("The agent is killed and restarted")
        with self.under_load("the agent was down") as load:
            self.show.command(f"kill -9 {self.agent.pid}")
            self.agent.kill()
            load.wait_more(MORE)
            self.agent.start()
            self.scale(3)
        self.show.lbagent(self.agent, "status")


def node_status(address: str) -> dict[str, Any]:
    """Return a Node's status with this InternalIP."""
    return {"status": {"addresses": [{"type": "InternalIP", "address": address}]}}


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """Return a Deployment whose Pods serve port 8080."""
    labels = {"app": name}
    container = {"name": "server", "image": "none", "ports": [{"containerPort": 8080}]}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def play(show: Show) -> None:
    """Run the chapters."""
    programs = build_programs(print)
    with Lab(pod=False) as lab:
        plane = ControlPlane(programs, lab.folder / "kube")
        lab.closing.callback(plane.close)
        demo = Demo(lab, plane, show)
        for chapter in (
            demo.set_up, demo.spread, demo.scale_under_load, demo.unready, demo.maintenance, demo.server_dies, demo.agent_dies,
        ):  # fmt: skip
            chapter()


if __name__ == "__main__":
    sys.exit(present("demo-k8s", play, Missing, BuildFailed, Refused))
