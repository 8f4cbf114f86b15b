"""An endpoint moves to another Service while clients continue: datagrams go to the right Service, connections stay."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.e2e.cluster import DNS, VIP4, Cluster
from tests.e2e.conftest import opened
from tests.lab import traffic
from tests.lab.agent import Agent
from tests.lab.manifests import Endpoint, Manifest, put
from tests.lab.netns import wait_for
from tests.lab.topology import DNS_PORT

pytestmark = pytest.mark.early

OTHERS = ("10.96.8.1", "fd00:96::801")
PAUSE_S = 0.1  # between two requests of a client


@pytest.fixture(scope="module", params=["xdp", "tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An agent whose sweeper has no other reason to sweep."""
    with opened(request.param, ["--sweep-interval", "3600"]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


class Resolver:
    """A client that sends to a frontend by one socket repeatedly, and records the answering backend."""

    def __init__(self, vip: str) -> None:
        self.answers: list[str] = []
        self._sock = socket.socket(socket.AF_INET6 if ":" in vip else socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.settimeout(5)
        self._sock.connect((vip, 53))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_S):
            question = traffic.dns_question()
            try:
                self._sock.send(question)
                self.answers.append(traffic.dns_answer(question, self._sock.recv(2048)).backend)
            except OSError as error:
                self.answers.append(type(error).__name__)

    def start(self) -> None:
        self._thread.start()

    def more(self) -> None:
        """Wait for some answers."""
        have = len(self.answers)
        wait_for(lambda: len(self.answers) >= have + 5, "more answers", timeout_s=60)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._sock.close()


@contextmanager
def asking(cluster: Cluster) -> Iterator[list[Resolver]]:
    """Run a client of both families' frontends during the block."""
    with cluster.client.entered():
        resolvers = [Resolver(vip) for vip in DNS]
    try:
        for each in resolvers:
            each.start()
            each.more()
        yield resolvers
    finally:
        for each in resolvers:
            each.close()


def serve(cluster: Cluster, dns: list[Endpoint], others: list[Endpoint], *, wait: bool = True) -> None:
    """Write both Services into one file, at once."""
    other = Manifest("other", OTHERS, others, port=53, protocol="UDP")
    one = Manifest("dns", DNS, dns, port=53, protocol="UDP")
    put(cluster.folder, "dns.yaml", yaml.safe_dump_all([*one.objects(), *other.objects()]))
    if wait:
        cluster.wait_backends(one)
        cluster.wait_backends(other)


def of(cluster: Cluster, *names: str) -> list[Endpoint]:
    return cluster.endpoints(*names, port=DNS_PORT)


@pytest.mark.parametrize(("first", "then"), [("b1", "b2"), ("b3", "b1"), ("b1", "b3")], ids=str)
def test_a_resolver_goes_to_its_own_service(served: Cluster, first: str, then: str) -> None:
    """b3 is local. Every request is answered, and none reaches the endpoint that left."""
    (spare,) = {"b1", "b2", "b3"} - {first, then}
    serve(served, of(served, first), of(served, spare))
    with asking(served) as resolvers:
        serve(served, of(served, then), of(served, first))
        for each in resolvers:
            wait_for(lambda each=each: each.answers[-1] == then, "the other endpoint", timeout_s=60)  # type: ignore[misc]
            each.more()
        for each in resolvers:
            moved = each.answers.index(then)
            assert set(each.answers[:moved]) == {first}
            assert set(each.answers[moved:]) == {then}
        with served.client.entered():
            assert {traffic.dns_ask(vip, 53).backend for vip in OTHERS} == {first}


def test_an_endpoint_that_is_not_ready_keeps_its_datagrams(served: Cluster) -> None:
    """It is still in the slices of the Service, also if another Service has it too."""
    serve(served, of(served, "b1"), of(served, "b2"))
    sick = [Endpoint(e.address, e.port, e.node, ready=False) for e in of(served, "b1")]
    with asking(served) as resolvers:
        serve(served, [*of(served, "b3"), *sick], of(served, "b1"))
        for each in resolvers:
            each.more()
            assert set(each.answers) == {"b1"}


@pytest.mark.parametrize("end", [Agent.kill, Agent.stop], ids=lambda each: each.__name__)
def test_it_moves_while_no_agent_runs(served: Cluster, end: Callable[[Agent], object]) -> None:
    """The next agent finds the flows whose endpoint is not of their Service."""
    serve(served, of(served, "b1"), of(served, "b2"))
    with asking(served) as resolvers:
        end(served.agent)
        serve(served, of(served, "b3"), of(served, "b1"), wait=False)
        for each in resolvers:
            each.more()
        served.agent.start()
        for each in resolvers:
            wait_for(lambda each=each: each.answers[-1] == "b3", "the other endpoint", timeout_s=60)  # type: ignore[misc]
            each.more()
            assert set(each.answers[each.answers.index("b3") :]) == {"b3"}


def test_connections_stay(served: Cluster) -> None:
    """TCP ends with its endpoint."""
    served.serve(served.web("b1"))
    talkers = served.talkers(10, VIP4)
    other = Manifest("other", OTHERS, served.endpoints("b1"), port=80)
    put(served.folder, "web.yaml", yaml.safe_dump_all([*served.web("b2").objects(), *other.objects()]))
    served.wait_backends(served.web("b2"))
    served.wait_backends(other)
    assert talkers.ask() == talkers.first == ["b1"] * 10
    talkers.close()
