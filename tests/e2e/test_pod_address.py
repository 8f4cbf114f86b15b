"""A pod as a client of a Service: backends on other nodes see the pod's address if replies return through this node."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.lab import traffic
from tests.lab.traffic import Answer

NODE = {"b1": ("10.77.1.1", "fd77:1::1"), "b2": ("10.77.2.1", "fd77:2::1")}  # the node's address at the backends
MASQUERADE = """
table inet cni { chain postrouting { type nat hook postrouting priority 100;
    iifname "pod*" ip saddr 10.244.0.0/24 ip daddr 10.77.1.0/24 masquerade;
    iifname "pod*" ip6 saddr fd44::/64 ip6 daddr fd77:1::/64 masquerade; }; }
"""
SOURCE_PORTS = itertools.count(10000)  # each is used once: a live flow keeps its translation


def answers(cluster: Cluster, vip: str, count: int = 40) -> set[Answer]:
    """Send requests from the pod b3 to a VIP; return the backends, and the client's address at each."""
    ask, port = (traffic.http_get, 80) if vip in WEB else (traffic.dns_ask, 53)
    with cluster.lab.namespaces["b3"].entered():
        return {ask(vip, port, source_port=next(SOURCE_PORTS)) for _ in range(count)}


def seen_by(found: set[Answer], name: str) -> set[str]:
    return {answer.client for answer in found if answer.backend == name}


def own(cluster: Cluster, vip: str) -> str:
    pod = cluster.lab.backends["b3"]
    return pod.ipv6 if ":" in vip else pod.ipv4


@pytest.fixture
def remote(served: Cluster) -> Cluster:
    """The cluster with web and dns only on other nodes."""
    served.serve(served.web("b1", "b2"), served.dns("b1", "b2"))
    return served


@pytest.mark.parametrize("vip", [*WEB, *DNS])
def test_backends_on_other_nodes_see_the_pod(remote: Cluster, vip: str) -> None:
    before = remote.packets()
    found = answers(remote, vip)
    assert found == {Answer(name, own(remote, vip)) for name in ("b1", "b2")}
    after = remote.packets()
    assert after["fwd_new"] == before["fwd_new"], "no flow got a SNAT port"
    assert after["fwd_reply"] > before["fwd_reply"]


@pytest.mark.parametrize("vip", WEB)
def test_a_large_body_arrives_whole(remote: Cluster, vip: str) -> None:
    with remote.lab.namespaces["b3"].entered(), traffic.connect(vip, 80) as sock:
        assert len(traffic.request(sock, "/bytes?n=3000000")) == 3_000_000


@pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
def test_what_the_node_masquerades_comes_back_too(remote: Cluster) -> None:
    """A CNI's rule for destinations outside the pod network: for the stack the connection is between pod and backend."""
    node = remote.lab.node
    subprocess.run(node.command(["nft", "-f", "-"]), input=MASQUERADE, text=True, check=True)
    try:
        for vip in (*WEB, *DNS):
            found = answers(remote, vip)
            assert seen_by(found, "b1") == {NODE["b1"][":" in vip]}
            assert seen_by(found, "b2") == {own(remote, vip)}
    finally:
        subprocess.run(node.command(["nft", "flush", "ruleset"]), check=True)


@pytest.fixture
def one_device(fresh: Callable[..., Cluster]) -> Cluster:
    """An agent without programs at the devices towards the other nodes."""
    cluster = fresh("tc")
    cluster.agent.devices = ["wan"]
    cluster.web("b1", "b2").write(cluster.folder)
    cluster.agent.start()
    return cluster


def test_replies_by_a_device_without_programs(one_device: Cluster) -> None:
    """For example a tunnel: the program processes them where they leave to the pod."""
    one_device.wait_backends(one_device.web("b1", "b2"))
    for vip in WEB:
        assert answers(one_device, vip) == {Answer(name, own(one_device, vip)) for name in ("b1", "b2")}


def test_masquerade_all(fresh: Callable[..., Cluster]) -> None:
    """They see the node, and such a connection continues when the setting is removed."""
    cluster = fresh("tc", "--masquerade-all")
    manifests = [cluster.web("b1", "b2"), cluster.dns("b1", "b2")]
    for manifest in manifests:
        manifest.write(cluster.folder)
    cluster.agent.start()
    cluster.serve(*manifests)
    for vip in (*WEB, *DNS):
        assert answers(cluster, vip) == {Answer(name, NODE[name][":" in vip]) for name in ("b1", "b2")}
    talkers = traffic.Talkers(cluster.lab.namespaces["b3"], WEB[0], 80, 6)
    try:
        cluster.agent.arguments.remove("--masquerade-all")
        cluster.agent.stop()
        cluster.agent.start()
        for vip in (*WEB, *DNS):
            assert answers(cluster, vip) == {Answer(name, own(cluster, vip)) for name in ("b1", "b2")}
        assert talkers.ask() == talkers.first
    finally:
        talkers.close()
