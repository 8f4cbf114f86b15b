"""Limits of a Service's flows, least-conn and slow-start with real connections, over both families and a restart of the agent."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.lab import traffic
from tests.lab.netns import wait_for
from tests.lab.traffic import Talkers

MAX = 12
MOST_APART = 13  # with the less loaded one of two that are drawn of three, more is as probable as 1e-11
SWEEPS_PAUSE_S = 1.5  # without another sweep: those that new limits cause, two at most, follow one another at once


@pytest.fixture(params=["xdp", "tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with opened(request.param, ["--sweep-interval", "3600"]) as made:
        made.web().write(made.folder)
        made.agent.start()
        wait_for(lambda: sweeps(made) > 0, "the sweep after the start", 60)
        yield made


def limit(cluster: Cluster, *names: str, algorithm: str = "random", is_first: bool = True, **words: str) -> None:
    """Give the Service these words, and wait until the agent has put the manifest in force, and has counted the flows.

    `is_first`: it had no such words before, so its flows have never been counted.
    """
    before = cluster.agent.api.status()
    annotations = {f"lbagent.io/{word.replace('_', '-')}": value for word, value in words.items()}
    cluster.web(*names, annotations=annotations, algorithm=algorithm).write(cluster.folder)
    wait_for(lambda: cluster.agent.api.status()["generation"] != before["generation"], "another generation")
    if is_first:
        wait_for(lambda: sweeps(cluster) > before["sweeps"], "the sweep that counts the flows", 30)
    wait_for(lambda: not swept_meanwhile(cluster), "the last sweep", 30)


def sweeps(cluster: Cluster) -> int:
    return int(cluster.agent.api.status()["sweeps"])


def swept_meanwhile(cluster: Cluster) -> bool:
    """Return whether a sweep ends within a pause."""
    before = sweeps(cluster)
    time.sleep(SWEEPS_PAUSE_S)
    return sweeps(cluster) > before


def refused(cluster: Cluster, vip: str, error: type[OSError]) -> None:
    """A connection is not made."""
    with cluster.client.entered(), pytest.raises(error):
        traffic.connect(vip, 80, timeout_s=1.5).close()


def let_in(cluster: Cluster, vip: str, number: int) -> Talkers:
    """So many connections at once, as soon as both ends have closed those before."""

    def attempt() -> Talkers | None:
        try:
            return Talkers(cluster.client, vip, 80, number)
        except OSError:
            return None

    return wait_for(attempt, f"room for {number} connections", 30)


def test_max_flows(cluster: Cluster) -> None:
    """Twelve connections over both families; the next is dropped until one ends. A restart of the agent changes nothing."""
    limit(cluster, max_flows=str(MAX))
    four, six = Talkers(cluster.client, VIP4, 80, MAX // 2), Talkers(cluster.client, VIP6, 80, MAX // 2)
    try:
        before = cluster.packets()["drop_flow_limit"]
        refused(cluster, VIP4, TimeoutError)
        assert cluster.packets()["drop_flow_limit"] > before
        cluster.agent.kill()
        refused(cluster, VIP6, TimeoutError)
        cluster.agent.start()
        cluster.wait_backends(cluster.web())
        refused(cluster, VIP6, TimeoutError)
        assert all(answer.startswith("b") for answer in four.ask() + six.ask())
        six.sockets.pop().close()
        more = let_in(cluster, VIP4, 1)
        refused(cluster, VIP4, TimeoutError)
        more.close()
    finally:
        four.close()
        six.close()
    let_in(cluster, VIP4, MAX).close()


def test_flows_from_before_the_limit_count(cluster: Cluster) -> None:
    """Ten connections are there when the limit of twelve comes: they go on, and two more are let in."""
    cluster.wait_backends(cluster.web())
    old = Talkers(cluster.client, VIP4, 80, 10)
    limit(cluster, max_flows=str(MAX), over_limit="reject")
    new = Talkers(cluster.client, VIP6, 80, 2)
    refused(cluster, VIP4, ConnectionRefusedError)
    refused(cluster, VIP6, ConnectionRefusedError)
    assert all(answer.startswith("b") for answer in old.ask() + new.ask())
    old.close()
    new.close()


def test_max_flows_per_backend(cluster: Cluster) -> None:
    """Four for each of three backends: twelve connections, four each; the next one is refused."""
    limit(cluster, max_flows_per_backend="4", over_limit="reject")
    talkers = Talkers(cluster.client, VIP4, 80, 12)
    assert Counter(talkers.first) == {"b1": 4, "b2": 4, "b3": 4}
    refused(cluster, VIP4, ConnectionRefusedError)
    talkers.close()
    let_in(cluster, VIP4, MAX).close()


def test_new_flow_rate(cluster: Cluster) -> None:
    """A burst of five, then five a second: of thirty connections at once most are refused, and known ones go on."""
    limit(cluster, new_flow_rate="5", over_limit="reject")
    began, made = time.monotonic(), []
    with cluster.client.entered():
        for _ in range(30):
            try:
                made.append(traffic.connect(VIP4, 80))
            except ConnectionRefusedError:
                continue
    took = time.monotonic() - began
    assert 5 <= len(made) <= 6 + 5 * took
    for sock in made:
        assert traffic.request(sock)
        sock.close()
    assert cluster.packets()["drop_flow_rate"] >= 30 - len(made)


def test_least_conn(cluster: Cluster) -> None:
    """270 long connections are ninety for each backend, and those that one backend loses come back to it."""
    limit(cluster, algorithm="least-conn")
    talkers = Talkers(cluster.client, VIP4, 80, 270)
    found = Counter(talkers.first)
    loads = [found[name] for name in ("b1", "b2", "b3")]
    assert max(loads) - min(loads) <= MOST_APART, found
    for sock, name in zip(talkers.sockets, talkers.first, strict=True):
        if name == "b2":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a RST: the flow has ended
            sock.close()
    time.sleep(1.5)
    more = Talkers(cluster.client, VIP4, 80, 270)
    again = Counter(more.first)
    now = [again["b1"] + found["b1"], again["b2"], again["b3"] + found["b3"]]
    assert max(now) - min(now) <= MOST_APART, now  # 150 each; at random b2 has 90
    talkers.close()
    more.close()


def test_slow_start(cluster: Cluster) -> None:
    """A third backend gets few of the connections at first; at a start of the Service all are new, and none is slow."""
    limit(cluster, "b1", "b2", slow_start="600")
    assert min(cluster.http(240, [VIP4]).values()) >= 72  # 120 each, and six standard deviations
    limit(cluster, "b1", "b2", "b3", is_first=False, slow_start="600")
    cluster.wait_backends(cluster.web())
    found = cluster.http(450, [VIP4])
    assert found["b3"] <= 75, found  # a tenth of 150, and not 150
    limit(cluster, "b1", "b2", "b3", is_first=False, slow_start="1")
    time.sleep(2.5)
    assert cluster.http(450, [VIP4])["b3"] >= 85  # 150, and six standard deviations and a half
