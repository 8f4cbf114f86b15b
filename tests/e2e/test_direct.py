"""One client port sends to a Service and directly to its pod, over UDP in turn and over TCP at once: each answer has the right source address."""

from __future__ import annotations

import socket

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab import traffic
from tests.lab.topology import DNS_PORT, HTTP_PORT

ROUNDS = 40
PORT = 45678


def ask(sock: socket.socket, address: str, port: int) -> traffic.Answer:
    """Send one request; the answer must come from its destination."""
    question = traffic.dns_question()
    sock.sendto(question, (address, port))
    data, source = sock.recvfrom(2048)
    assert source[:2] == (address, port)
    return traffic.dns_answer(question, data)


@pytest.mark.parametrize("first", ["service", "pod"])
@pytest.mark.parametrize("vip", DNS)
def test_a_service_and_its_pod_from_one_socket(served: Cluster, vip: str, first: str) -> None:
    served.serve(served.dns("b3"))
    pod = served.lab.backends["b3"]
    address = pod.ipv6 if ":" in vip else pod.ipv4
    with served.client.entered():
        family = socket.AF_INET6 if ":" in vip else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock, socket.socket(family, socket.SOCK_DGRAM) as other:
            for each in (sock, other):
                each.settimeout(traffic.TIMEOUT_S)
            own = ask(other, vip, 53).client
            if first == "pod":
                ask(sock, address, DNS_PORT)
            for _ in range(ROUNDS):
                assert ask(sock, vip, 53).backend == "b3"
                assert ask(sock, address, DNS_PORT) == traffic.Answer("b3", own)
            assert ask(sock, vip, 53).client != own, "the Service's flow has made way"
            assert ask(other, vip, 53).client == own, "another socket is not concerned"
    assert not {name for name in served.packets() if name.startswith("drop_") and served.packets()[name]}


class Ends:
    """Connections from one port to a Service (`vip`) and to its only pod (`pod`)."""

    def __init__(self, cluster: Cluster, vip: str, port: int) -> None:
        """Serve only with the pod of this node."""
        cluster.serve(cluster.web("b3"))
        pod = cluster.lab.backends["b3"]
        self.port = port
        self.vip = (vip, 80)
        self.pod = (pod.ipv6 if ":" in vip else pod.ipv4, HTTP_PORT)

    def connect(self, to: tuple[str, int]) -> socket.socket:
        """Connect from the port, which another connection may use too."""
        sock = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.settimeout(traffic.TIMEOUT_S)
        sock.bind(("", self.port))
        sock.connect(to)
        return sock


def who(sock: socket.socket) -> str:
    """Send a request on a connection; return the client's address at the pod."""
    name, client = traffic.request(sock).decode().split()
    assert name == "b3"
    return client


@pytest.mark.parametrize("first", ["service", "pod"])
@pytest.mark.parametrize("vip", WEB)
def test_a_service_and_its_pod_from_one_port(served: Cluster, vip: str, first: str) -> None:
    """The first connection has the client's own address. The second one of a Service needs one more SYN: the pod must challenge the first one."""
    ends = Ends(served, vip, PORT + (first == "pod"))
    order = (ends.vip, ends.pod) if first == "service" else (ends.pod, ends.vip)
    with served.client.entered(), ends.connect(order[0]) as one:
        own = who(one)
        with ends.connect(order[1]) as two:
            node = who(two)
            assert node != own
            for _ in range(ROUNDS):
                assert who(one) == own
                assert who(two) == node
            assert len(traffic.request(one, "/bytes?n=300000")) == 300000
            assert len(traffic.request(two, "/bytes?n=300000")) == 300000
            one.close()
            assert who(two) == node, "the other connection continues"
    assert not {name for name in served.packets() if name.startswith("drop_") and served.packets()[name]}
