"""One UDP socket asks a Service and the very pod behind it in turn: each answer comes from where it was asked."""

from __future__ import annotations

import socket

import pytest

from tests.e2e.cluster import DNS, Cluster
from tests.lab import traffic
from tests.lab.topology import DNS_PORT

ROUNDS = 40


def ask(sock: socket.socket, address: str, port: int) -> traffic.Answer:
    """Ask one question; the answer must come from there."""
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
