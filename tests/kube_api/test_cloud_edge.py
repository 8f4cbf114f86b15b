"""`lbagent cloud run --provider edge` with the real API server, on the LAN of a real router."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kube_api.cloud_process import FINALIZER, CloudLab, CloudProcess
from tests.kube_api.control_plane import ControlPlane
from tests.lab.netns import Namespace, wait_for
from tests.lab.router import HOST, OUTSIDE, WAN, Router, need_router

pytestmark = [pytest.mark.root]
NODE = "edge-node"
TYPE = "midokura.com/load-balancer-type"
METRICS = 9701  # in the control plane's namespace


class HomeRouter(Router):
    """A router whose LAN has the control plane and the controller."""

    lan_device = "edge0"

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__("edge-")
        self._plane = plane

    def space(self, role: str) -> Namespace:
        return self._plane.namespace if role == "host" else super().space(role)

    def ask(self, number: int, address: str = WAN) -> str:
        """Return the answer for an outside client."""
        try:
            with self.outside.entered(), socket.create_connection((address, number), 3) as client:
                return client.recv(100).decode()
        except OSError as error:
            return type(error).__name__


@pytest.fixture
def router(cloud: CloudLab) -> Iterator[HomeRouter]:
    need_router()
    plane = cloud.cluster.plane
    with HomeRouter(plane) as found:
        found.start()
        cloud.cluster.add_node(NODE, HOST)
        try:
            yield found
        finally:
            plane.send("DELETE", f"/api/v1/nodes/{NODE}")


def controller(cloud: CloudLab) -> CloudProcess:
    """Start the controller in the control plane's namespace. `node` is not set: it is `self`, with --node-name."""
    plane = cloud.cluster.plane
    kubeconfig = cloud.folder / "inside"
    cloud.folder.mkdir(exist_ok=True)
    plane.kubeconfig(plane.account_token("lbagent-cloud"), kubeconfig, 6443)
    config = "protocols: [upnp]\npoll: 1s\nlease: 60s\n"
    one = CloudProcess(cloud.folder, kubeconfig, "edge", config, "--metrics-address", f"127.0.0.1:{METRICS}", name=NODE)
    one.argv = plane.namespace.command(one.argv)
    cloud.processes.append(one)
    one.start()
    return one


def serve(space: Namespace, number: int) -> socket.socket:
    """Answer at a node port with the client's address, until the socket is closed."""
    server = space.call(socket.create_server, ("0.0.0.0", number))

    def run() -> None:
        while True:
            try:
                client, peer = server.accept()
            except OSError:
                return
            with client:
                client.sendall(peer[0].encode())

    threading.Thread(target=run, daemon=True).start()
    return server


def annotate(cloud: CloudLab, name: str, text: str | None) -> None:
    cloud.patch(name, {"metadata": {"annotations": {TYPE: text}}})


def metrics(plane: ControlPlane) -> dict[str, float]:
    def fetch() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{METRICS}/metrics", timeout=10) as answer:
            return str(answer.read(), "utf-8")

    families = text_string_to_metric_families(plane.namespace.call(fetch))
    return {
        each.name: each.value for family in families for each in family.samples if each.name.startswith("lbagent_edge")
    }


def test_at_home(cloud: CloudLab, router: HomeRouter) -> None:
    plane, one = cloud.cluster.plane, controller(cloud)
    node_port = cloud.add("web")["spec"]["ports"][0]["nodePort"]
    one.until(lambda: "LoadBalancerRefused" in cloud.events("web"), "the Event")
    assert "no annotation" in cloud.events("web")["LoadBalancerRefused"]["message"]
    assert router.changes() == {}

    annotate(cloud, "web", "upnp-igd")
    one.until(lambda: cloud.ips("web") == [WAN], "the router's address")
    assert cloud.finalizers("web") == [FINALIZER]
    server = serve(plane.namespace, node_port)
    assert router.ask(80) == OUTSIDE
    assert metrics(plane) == {"lbagent_edge_mappings": 1.0, "lbagent_edge_gateway_up": 1.0}

    router.set_wan("11.0.1.1")
    one.until(lambda: cloud.ips("web") == ["11.0.1.1"], "the other address")
    assert router.ask(80, "11.0.1.1") == "11.0.1.2"

    cloud.add("second")
    annotate(cloud, "second", "upnp-igd")
    one.until(lambda: "PortConflict" in cloud.events("second"), "the Event")
    assert "for 'kubernetes/default/web/http'" in cloud.events("second")["PortConflict"]["message"]
    assert cloud.ips("second") == []
    one.kill()
    cloud.cluster.delete_service("web")
    assert not cloud.is_gone("web")
    one.start()
    one.until(lambda: cloud.is_gone("web"), "the end of the Service")
    one.until(lambda: cloud.ips("second") == ["11.0.1.1"], "the port that came free")
    server.close()
    server = serve(plane.namespace, cloud.service("second")["spec"]["ports"][0]["nodePort"])
    assert router.ask(80, "11.0.1.1") == "11.0.1.2"

    annotate(cloud, "second", None)
    one.until(lambda: cloud.ips("second") == [], "the end of the address")
    wait_for(lambda: router.ask(80, "11.0.1.1") == "ConnectionRefusedError", "the end of the mapping", 30)
    annotate(cloud, "second", "upnp-igd")
    one.until(lambda: cloud.ips("second") == ["11.0.1.1"], "the address again")
    router.kill()
    one.until(lambda: metrics(plane).get("lbagent_edge_gateway_up") == 0.0, "the loss of the gateway")
    cloud.cluster.delete_service("second")
    one.until(lambda: cloud.is_gone("second"), "the end of a Service without a gateway")
    server.close()
    assert one.stop() == 0
