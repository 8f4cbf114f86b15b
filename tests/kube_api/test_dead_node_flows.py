"""Established flows to a dead node: with --dead-node-flows reset they end at the next packet, by default they go on. New ones, also
of clients with affinity, go elsewhere. With bpf and with nftables.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from tests.kube_api.announcing_nodes import Host, Link
from tests.kube_api.cluster import Cluster
from tests.kube_api.watching_nodes import ClusterOfNodes
from tests.lab import traffic
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf]
VIP, STICKY, DNS = "10.8.0.100", "10.8.0.101", "10.8.0.102"
FIRST_PORT = 42000
FLOWS = 84  # that one of four backends has none is as probable as 3e-11
SILENT_S = 0.5  # without an answer


class Flows(ClusterOfNodes):
    """Four nodes: the third has nftables as its renderer. The first one dies."""

    def __init__(self, link: Link, mode: str) -> None:
        super().__init__(link, 4, "--dead-node-flows", mode, announces=False, renderers={"host3": "nftables"})
        self.mode = mode
        self.victim, self.bpf, self.nftables, _ = self.hosts
        self.serve("web", VIP)
        self.link.serve("sticky", STICKY, hosts=self.hosts, sessionAffinity="ClientIP")
        port = {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353}
        self.link.serve("dns", DNS, hosts=[], ports=[port])
        endpoints = [{"addresses": [host.pod_address], "nodeName": host.name} for host in self.hosts]
        ports = [{"name": "dns", "port": 5353, "protocol": "UDP"}]
        link.cluster.put_slice("dns-own", "dns", endpoints=endpoints, ports=ports)
        for host in (self.bpf, self.nftables):
            wait_for(lambda host=host: self.asked(host, STICKY), "the Service sticky", 60)
            wait_for(lambda host=host: self.asked_by_udp(host, FIRST_PORT - 1, SILENT_S), "the Service dns", 60)

    def asked_by_udp(self, host: Host, port: int, timeout_s: float = traffic.TIMEOUT_S) -> str:
        """Return the name that answers a datagram from this port, '' for none."""
        try:
            return host.pod.call(traffic.dns_ask, DNS, 53, source_port=port, timeout_s=timeout_s).backend
        except OSError:
            return ""

    def has_all(self, host: Host, address: str) -> bool:
        """Return whether the Service has a backend of each node at a node, and each takes new flows."""
        rows = [row for row in host.agent.api.services() if row["frontend"].startswith(f"{address}:")]
        return all(sum(each["selectable"] for each in row["backends"]) == len(self.hosts) for row in rows)

    def die(self) -> None:
        cut_at = self.cut(self.victim)
        for host in (self.bpf, self.nftables):
            self.until_dead(host, self.victim, cut_at + 3.5)
        time.sleep(0.5)

    def talkers(self, host: Host) -> tuple[traffic.Talkers, list[int]]:
        """Return connections of a node's pod, and which of them are to the node that dies."""
        talkers = traffic.Talkers(host.pod, VIP, 80, FLOWS)
        found = [number for number, name in enumerate(talkers.first) if name == self.victim.name]
        assert found
        return talkers, found


@pytest.fixture(scope="module", params=["reset", "keep"])
def all_tests(plane: object, request: pytest.FixtureRequest) -> Iterator[Flows]:
    cluster = Cluster(plane)  # type: ignore[arg-type]
    link = Link(cluster)
    try:
        yield Flows(link, request.param)
    finally:
        link.close()
        cluster.clear()


@pytest.fixture
def flows(all_tests: Flows) -> Iterator[Flows]:
    yield all_tests
    all_tests.restore()


def test_connections_to_a_dead_node(flows: Flows) -> None:
    opened = [flows.talkers(host) for host in (flows.bpf, flows.nftables)]
    flows.die()
    for talkers, lost in opened:
        for number in lost:
            talkers.sockets[number].settimeout(SILENT_S if flows.mode == "keep" else traffic.TIMEOUT_S)
        answers = talkers.ask()
        for number, (before, answer) in enumerate(zip(talkers.first, answers, strict=True)):
            if number not in lost:
                assert answer == before
            else:
                assert answer.startswith("ConnectionResetError" if flows.mode == "reset" else "TimeoutError"), answer
        talkers.close()
    for host in (flows.bpf, flows.nftables):
        assert flows.backends_of(host, VIP, 90) == {each.name for each in flows.hosts if each is not flows.victim}
    flows.restore()
    for host in (flows.bpf, flows.nftables):
        wait_for(lambda host=host: flows.has_all(host, VIP), "the one that was dead", 60)
        assert flows.backends_of(host, VIP, 90) == {each.name for each in flows.hosts}


def test_a_client_that_only_sends_gets_a_reset_too(flows: Flows) -> None:
    if flows.mode == "keep":
        return
    talkers, lost = flows.talkers(flows.bpf)
    flows.die()
    sock = talkers.sockets[lost[0]]
    sock.send(b"x")
    sock.settimeout(traffic.TIMEOUT_S)
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    talkers.close()


def test_datagrams_of_a_flow(flows: Flows) -> None:
    """With reset they move to another backend, as UDP has no end that a client detects."""
    ports = range(FIRST_PORT, FIRST_PORT + FLOWS)
    first = {host: {port: flows.asked_by_udp(host, port) for port in ports} for host in (flows.bpf, flows.nftables)}
    flows.die()
    for host, answers in first.items():
        lost = [port for port, name in answers.items() if name == flows.victim.name]
        assert lost
        for port in ports:
            is_silent = port in lost and flows.mode == "keep"
            answer = flows.asked_by_udp(host, port, SILENT_S if is_silent else traffic.TIMEOUT_S)
            if port not in lost:
                assert answer == answers[port]
            elif flows.mode == "reset":
                assert answer not in ("", flows.victim.name), host.name
            else:
                assert answer == "", host.name


def test_a_client_with_affinity_to_a_dead_node_gets_another_backend(flows: Flows) -> None:
    """Each pod is one client. The node that dies is the one that has the client of bpf's node, then that of the other."""
    for host in (flows.bpf, flows.nftables):
        wait_for(lambda host=host: flows.has_all(host, STICKY), "all backends, also the one that was dead", 60)
        name = flows.asked(host, STICKY)
        assert {flows.asked(host, STICKY) for _ in range(10)} == {name}
        (dead,) = [each for each in flows.hosts if each.name == name]
        if dead is host:
            continue  # its own pod: nothing is between them
        cut_at = flows.cut(dead)
        flows.until_dead(host, dead, cut_at + 3.5)
        time.sleep(0.5)
        after = {flows.asked(host, STICKY) for _ in range(10)}
        assert len(after) == 1
        assert not after & {"", dead.name}, host.name
        flows.restore()
