"""The agent as a process with a real API server: the maps have the entries that a new agent writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.agent.conftest import Box, box  # noqa: F401 - a fixture
from tests.kube_api.cluster import NODE, Cluster
from tests.kube_api.control_plane import ControlPlane
from tests.kube_api.proxy import Proxy
from tests.lab.agent import KubeAgent, program
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]
IDS = re.compile(r"\b(BEID|ID)=\d+")


class Node:
    """A box whose agent follows a control plane, through a proxy in the box."""

    def __init__(self, box: Box, plane: ControlPlane) -> None:  # noqa: F811 - the fixture has its name
        self.box = box
        box.node.ip("link set lo up")
        self.proxy = Proxy(plane.namespace, 6443, listen=box.node)
        box.closing.callback(self.proxy.close)
        plane.kubeconfig(plane.lasting_token, box.folder / "kubeconfig", self.proxy.port)
        self.agent = KubeAgent(box, box.manifests, attach="tc")  # type: ignore[arg-type]
        self.agent.devices = ["eth0"]

    def has(self, *words: str) -> bool:
        dump = "\n".join(self.agent.dump())
        return all(word in dump for word in words)

    def until(self, *words: str) -> None:
        wait_for(lambda: self.has(*words), " ".join(words), 60)  # the pause before a retry is up to 30 s

    def contents(self) -> list[str]:
        """The entries of the maps, without the numbers that depend on earlier entries."""
        return sorted(IDS.sub(r"\1", line) for line in self.agent.dump())


@pytest.fixture
def node(box: Box, plane: ControlPlane) -> Iterator[Node]:  # noqa: F811
    one = Node(box, plane)
    yield one
    one.agent.remove()


def shop(cluster: Cluster) -> str:
    """Create a Service with a Pod; return its address."""
    service = cluster.add_service("web")
    cluster.add_pod("web-0", "web", "10.244.0.10")
    return str(service["spec"]["clusterIP"])


def test_the_maps_follow_a_real_server_through_faults(node: Node, cluster: Cluster, plane: ControlPlane) -> None:
    agent, vip = node.agent, shop(cluster)
    agent.start()
    node.until(f"ADDR={vip}:80/TCP", "10.244.0.10:8080")
    assert "web" in agent.cli("svc", "list").stdout

    node.proxy.cut_after(300)  # in the middle of an event
    cluster.add_pod("web-1", "web", "10.244.0.11")
    node.until("10.244.0.11:8080")

    plane.kill()
    assert node.has(f"ADDR={vip}:80/TCP", "10.244.0.10:8080", "10.244.0.11:8080")
    plane.start()
    cluster.delete_pod("web-0")
    more = cluster.add_service("more")["spec"]["clusterIP"]
    cluster.add_pod("more-0", "more", "10.244.0.12")
    node.until(f"ADDR={more}:80/TCP", "10.244.0.12:8080")
    wait_for(lambda: not node.has("10.244.0.10:8080"), "the deletion", 60)
    wait_for(lambda: agent.cli("status", check=False).returncode == 0, "a good status", 40)

    followed = node.contents()
    agent.kill()
    agent.cli("cleanup")
    agent.start()
    node.until("10.244.0.12:8080")
    assert node.contents() == followed


def test_pods_and_services_hear_of_what_is_done_to_them(node: Node, cluster: Cluster) -> None:
    vip = shop(cluster)
    cluster.add_service("calls", annotations={"lbagent.io/health-check": "tcp interval=200ms timeout=100ms fall=1"})
    cluster.add_pod("calls-0", "calls", "10.244.0.20")  # an address without a host
    node.agent.start()
    node.until(f"ADDR={vip}:80/TCP", "10.244.0.10:8080")
    node.agent.cli("backend", "set-state", "--yes", "maintenance", "10.244.0.10:8080/TCP")
    wait_for(lambda: len(cluster.events()) >= 2, "two Events", 20)
    told = {
        (each["involvedObject"]["kind"], each["involvedObject"]["name"], each["reason"]) for each in cluster.events()
    }
    assert told == {("Pod", "web-0", "BackendStateSet"), ("Service", "calls", "HealthCheckPanic")}
    texts = " ".join(each["message"] for each in cluster.events())
    assert f"the operator set the state maintenance for 10.244.0.10:8080/TCP on the node {NODE}" in texts
    assert "more than half" in texts
    assert all(each["involvedObject"]["uid"] for each in cluster.events())


def test_a_name_that_no_node_has_ends_the_start(node: Node, plane: ControlPlane) -> None:
    node.agent.name = "other"
    done = node.box.run(*node.agent.argv()[len(program()) :])
    assert done.returncode == 3, done.stderr
    assert f"no node 'other'; it has {NODE}." in done.stderr
    assert "Traceback" not in done.stderr
