"""A Service with a range of ports: real sockets at ports of the range, over restarts, and a range that shrinks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.e2e.conftest import NODE_ADDRESSES
from tests.lab import cgroup, traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import wait_for
from tests.lab.topology import DNS_PORT, HTTP_PORT

RANGE = "lbagent.io/port-range"


def web(cluster: Cluster, first: int, last: int) -> Manifest:
    return cluster.web(annotations={RANGE: f"p={first}-{last}"})


def dns(cluster: Cluster, first: int, last: int) -> Manifest:
    return cluster.dns(annotations={RANGE: f"p={first}-{last}"})


def get(cluster: Cluster, vip: str, port: int) -> str:
    """Return which backend answers at a port of the VIP, or the name of the error."""
    with cluster.client.entered():
        try:
            return traffic.http_get(vip, port).backend
        except OSError as error:
            return type(error).__name__


def listed(cluster: Cluster) -> set[str]:
    return {row["frontend"] for row in cluster.agent.api.services()}


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_ports_of_a_range(fresh: Callable[..., Cluster], attach: str) -> None:
    """Both families, TCP and UDP, local and remote backends: the backend is reached at the port that the client used."""
    cluster = fresh(attach)
    web(cluster, HTTP_PORT - 5, HTTP_PORT + 5).write(cluster.folder)
    dns(cluster, DNS_PORT, DNS_PORT + 1000).write(cluster.folder)
    cluster.agent.start()
    assert {f"{WEB[0]}:{HTTP_PORT - 5}-{HTTP_PORT + 5}/TCP", f"{WEB[0]}:80/TCP"} <= listed(cluster)
    for vip in WEB:
        assert {get(cluster, vip, HTTP_PORT) for _ in range(60)} == {"b1", "b2", "b3"}
        assert get(cluster, vip, 80) in {"b1", "b2", "b3"}, "its own port has the targetPort"
        assert get(cluster, vip, HTTP_PORT + 1) == "ConnectionRefusedError", "the backend itself refuses"
        assert get(cluster, vip, HTTP_PORT + 6) == "ConnectionRefusedError", "an undefined port of a ClusterIP"
    counted = cluster.packets()
    assert counted["reject_undefined_port"] >= 2
    for vip in DNS:
        with cluster.client.entered():
            assert {traffic.dns_ask(vip, DNS_PORT).backend for _ in range(60)} == {"b1", "b2", "b3"}
    flows = cluster.agent.cli("flow", "list", "--frontend", f"{WEB[0]}:{HTTP_PORT}").stdout
    backends = {line.split()[3] for line in flows.splitlines()[1:]}
    assert {end.rpartition(":")[2] for end in backends} == {str(HTTP_PORT)}, "the port at which the backend is reached"
    assert cluster.agent.cli("verify", check=False).returncode == 0
    asked = cluster.agent.cli("explain", "10.77.0.2:4000", f"{WEB[0]}:{HTTP_PORT + 2}", check=False)
    explained = asked.stdout
    assert not asked.stderr, asked.stderr
    assert f"is in the range {HTTP_PORT - 5}-{HTTP_PORT + 5} of Service e2e/web" in explained


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_connections_outlive_a_restart_and_another_range(fresh: Callable[..., Cluster], attach: str) -> None:
    cluster = fresh(attach)
    web(cluster, HTTP_PORT - 5, HTTP_PORT + 5).write(cluster.folder)
    cluster.agent.start()
    with cluster.client.entered():
        sockets = [traffic.connect(vip, HTTP_PORT) for vip in WEB for _ in range(6)]
    before = [traffic.request(sock) for sock in sockets]
    dumped = cluster.agent.dump()
    cluster.agent.kill()
    assert [traffic.request(sock) for sock in sockets] == before
    cluster.agent.start()
    assert cluster.agent.dump() == dumped
    assert [traffic.request(sock) for sock in sockets] == before
    web(cluster, HTTP_PORT + 1, HTTP_PORT + 5).write(cluster.folder)
    wait_for(lambda: get(cluster, WEB[0], HTTP_PORT) == "ConnectionRefusedError", "the smaller range")
    for sock in sockets:
        sock.close()
    assert cluster.agent.cli("verify", check=False).returncode == 0


def test_sockets_of_the_node(fresh: Callable[..., Cluster], group: Path) -> None:
    """With --socket-lb a socket is connected to the backend at the port that its process uses, and shows the frontend."""
    ips = [word for address in NODE_ADDRESSES for word in ("--node-ip", address)]
    cluster = fresh("tc", "--socket-lb", "--cgroup", str(group), *ips)
    web(cluster, HTTP_PORT - 5, HTTP_PORT + 5).write(cluster.folder)
    dns(cluster, DNS_PORT, DNS_PORT + 1000).write(cluster.folder)
    cluster.agent.start()
    with cgroup.joined(group), cluster.lab.node.entered():
        for vip in WEB:
            with traffic.connect(vip, HTTP_PORT) as sock:
                assert sock.getpeername()[:2] == (vip, HTTP_PORT)
                assert traffic.request(sock).decode().split()[0] in {"b1", "b2", "b3"}
        for vip in DNS:
            assert traffic.dns_ask(vip, DNS_PORT).backend in {"b1", "b2", "b3"}
    assert cluster.packets()["fwd_socket"] >= 4
