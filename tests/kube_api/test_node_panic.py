"""A cut that takes a third of the nodes is one of the network: no node is declared dead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.kube_api.announcing_nodes import Host, Link
from tests.kube_api.cluster import Cluster
from tests.kube_api.watching_nodes import ClusterOfNodes
from tests.lab.netns import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def nine(plane: object) -> Iterator[ClusterOfNodes]:
    """Nine nodes whose agents balance nothing: their decisions alone are of interest."""
    cluster = Cluster(plane)  # type: ignore[arg-type]
    link = Link(cluster)
    try:
        yield ClusterOfNodes(link, 9, "--renderer", "none", announces=False)
    finally:
        link.close()
        cluster.clear()


def test_a_cut_that_takes_a_third_of_the_nodes_makes_none_dead(nine: ClusterOfNodes) -> None:
    """And reports it: `status`, the metric, one Event. Without a third of them two are dead."""
    lost, others = nine.hosts[:3], nine.hosts[3:]
    for host in lost:
        nine.cut(host)
    _none_dies(nine, others, 8)
    for host in others:
        assert "lbagent_node_panic 1" in host.agent.api.metrics()
    text = others[0].agent.cli("status", check=False).stdout
    assert "3 of 9 nodes do not answer (host1, host2, host3): none of them is declared dead" in text
    events = [each for each in nine.link.cluster.events() if each["reason"] == "NodePanic"]
    assert len(events) == 1
    for host in lost:
        nine.heal(host)
    _none_dies(nine, nine.hosts, 10)
    for host in nine.hosts:
        wait_for(lambda host=host: "lbagent_node_panic 0" in host.agent.api.metrics(), "the end of the panic", 10)
    cut_at = max(nine.cut(host) for host in lost[:2])
    for host in others:
        for dead in lost[:2]:
            nine.until_dead(host, dead, cut_at + 4)


def _none_dies(nodes: ClusterOfNodes, hosts: list[Host], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for host in hosts:
            assert not any(nodes.dead(host).values())
        time.sleep(0.05)
