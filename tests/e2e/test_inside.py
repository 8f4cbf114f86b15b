"""Clients on the node: processes of the node itself, and pods, also as clients of themselves."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab import traffic
from tests.lab.manifests import Manifest
from tests.lab.netns import Namespace

EMPTY, EMPTY_UDP = ("10.96.4.4", "fd00:96::404"), ("10.96.4.5", "fd00:96::405")


@pytest.fixture(scope="module", autouse=True)
def routed(cluster: Cluster) -> None:
    """Add a default route, as nodes have: without one the node's packets to a VIP have no route."""
    cluster.lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")


def client_of(cluster: Cluster, who: str) -> Namespace:
    """Return the namespace of a client: the node, the pod (b3), or outside."""
    places = {"node": cluster.lab.node, "pod": cluster.lab.namespaces["b3"], "outside": cluster.client}
    return places[who]


@pytest.mark.parametrize("who", ["node", "pod", "outside"])
def test_every_client_reaches_every_backend(served: Cluster, who: str) -> None:
    client = client_of(served, who)
    for vip, name in zip((*WEB, *DNS), ("http", "http", "dns", "dns"), strict=True):
        ask = partial(traffic.http_get, vip, 80) if name == "http" else partial(traffic.dns_ask, vip, 53)
        seen = traffic.spread(client, 60, ask)
        assert set(seen) == {"b1", "b2", "b3"}, (vip, seen)  # b3 is the client pod: it is also selected itself
        assert sum(seen.values()) == 60


@pytest.mark.parametrize("who", ["node", "pod", "outside"])
def test_a_service_without_backends_says_so_at_once(served: Cluster, who: str) -> None:
    Manifest("none", EMPTY, []).write(served.folder)
    served.serve(Manifest("none", EMPTY, []), Manifest("none-udp", EMPTY_UDP, [], port=53, protocol="UDP"))
    with client_of(served, who).entered():
        for vip in EMPTY:
            with pytest.raises(ConnectionRefusedError):
                traffic.connect(vip, 80, timeout_s=2)
        for vip in EMPTY_UDP:
            with socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(2)
                sock.connect((vip, 53))
                sock.send(b"anybody there")
                with pytest.raises(ConnectionRefusedError):
                    sock.recv(100)


def test_a_pod_reaches_an_address_that_is_also_the_nodes_own(served: Cluster) -> None:
    """A NodePort is such an address: the reply must not come in by the NIC with the node's own address as its source."""
    node, own = served.lab.node, ("10.96.0.10/32", "fd00:96::10/128")
    node.ip(*(f"addr add {address} dev lo" for address in own))
    try:
        served.serve(served.web("b1", "b2"))
        for vip in WEB:
            seen = traffic.spread(client_of(served, "pod"), 40, partial(traffic.http_get, vip, 80))
            assert sum(seen.values()) == 40
            assert set(seen) == {"b1", "b2"}
    finally:
        node.ip(*(f"addr del {address} dev lo" for address in own))
