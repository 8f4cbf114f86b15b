"""Pings of addresses of Services: from clients, pods and the node: answered while new flows are served."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.e2e.conftest import opened
from tests.lab.manifests import Manifest
from tests.lab.netns import wait_for
from tests.lab.ping import ping as ping_address

VIPS = (VIP4, VIP6)
BALANCERS = ("203.0.113.80", "2001:db8:113::80")
NODE_IPS = ("10.77.1.1", "fd77:1::1")
CLIENTS = ("10.77.0.2", "fd77::2")
SILENT_S = 0.7  # without an answer
both_families = pytest.mark.parametrize("family", [0, 1], ids=["ipv4", "ipv6"])


@pytest.fixture(scope="module", params=["xdp", "tc"])
def pinged(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    options = [word for address in NODE_IPS for word in ("--node-ip", address)]
    with opened(request.param, options) as cluster:
        node, client = cluster.lab.node, cluster.lab.client
        node.ip("route replace default via 10.77.0.2", "route replace default via fd77::2")
        client.ip("route replace 203.0.113.80/32 via 10.77.0.1", "route replace 2001:db8:113::80/128 via fd77::1")
        web(cluster, "b1", "b2", "b3")
        cluster.agent.start()
        yield cluster


def web(cluster: Cluster, *names: str) -> Manifest:
    """Serve these backends, or none, at cluster IPs, load balancer addresses and a NodePort."""
    manifest = cluster.web(*names) if names else Manifest("web", VIPS, [])
    manifest.spec |= {"type": "LoadBalancer"}
    manifest.status |= {"loadBalancer": {"ingress": [{"ip": address} for address in BALANCERS]}}
    manifest.write(cluster.folder)
    return manifest


@pytest.fixture
def served(pinged: Cluster) -> Cluster:
    serve(pinged, "b1", "b2", "b3")
    return pinged


def serve(cluster: Cluster, *names: str) -> None:
    """Serve these backends, and wait for the answers of each address: what decides about them is written after the frontends."""
    cluster.wait_backends(web(cluster, *names))
    for address in (*VIPS, *BALANCERS):
        wait_answer(cluster, address)


def wait_answer(cluster: Cluster, address: str) -> None:
    wait_for(lambda: not is_silent(cluster, address, 1), f"an answer of {address}")


def wait_silence(cluster: Cluster, address: str) -> None:
    wait_for(lambda: is_silent(cluster, address), f"silence of {address}")


def ping(cluster: Cluster, space: str, address: str, *, count: int = 2, size: int = 56, timeout_s: float = 5.0) -> int:
    """Return how many pings from a namespace were answered."""
    namespace = cluster.lab.node if space == "node" else cluster.lab.namespaces[space]
    return int(namespace.call(ping_address, address, count=count, size=size, timeout_s=timeout_s))


def is_silent(cluster: Cluster, address: str, count: int = 2) -> bool:
    """Return whether a client gets no answer at all."""
    return not ping(cluster, "client", address, count=count, timeout_s=SILENT_S)


@both_families
@pytest.mark.parametrize("space", ["client", "b3", "node"])
def test_each_address_answers_with_the_payload_it_got(served: Cluster, family: int, space: str) -> None:
    """Each byte is compared; a client, a pod of the node, and a process of the node."""
    for address in (VIPS[family], BALANCERS[family]):
        for size in (0, 57, 1400):
            assert ping(served, space, address, size=size) == 2
    assert served.packets()["answer_echo"] > 0


@both_families
def test_it_is_silent_while_no_frontend_takes_new_flows_and_answers_again(served: Cluster, family: int) -> None:
    web(served)
    wait_for(lambda: not served.selectable("web"), "no backend")
    before = served.packets()["drop_no_backend"]
    for address in (VIPS[family], BALANCERS[family]):
        wait_silence(served, address)
    assert served.packets()["drop_no_backend"] >= before + 4
    serve(served, "b1")
    assert ping(served, "client", VIPS[family]) == 2


@both_families
def test_quarantine_of_the_last_backend_counts(served: Cluster, family: int) -> None:
    """The operator's word, too: an address without a backend for new flows is silent."""
    serve(served, "b1")
    assert ping(served, "client", VIPS[family]) == 2
    end = "10.77.1.2:8080/TCP" if not family else "[fd77:1::2]:8080/TCP"
    served.agent.cli("backend", "set-state", end, "maintenance", "--yes")
    try:
        wait_silence(served, VIPS[family])
    finally:
        served.agent.cli("backend", "clear-state", end)
    wait_answer(served, VIPS[family])


@both_families
def test_the_node_s_own_address_is_the_kernel_s(served: Cluster, family: int) -> None:
    """Also without a backend: what a Service has decides for no address of the node."""
    before = served.packets()["answer_echo"]
    assert ping(served, "client", NODE_IPS[family]) == 2
    web(served)
    wait_for(lambda: not served.selectable("web"), "no backend")
    assert ping(served, "client", NODE_IPS[family]) == 2
    assert served.packets()["answer_echo"] == before


@both_families
def test_one_address_is_asked_and_one_answer_comes(served: Cluster, family: int) -> None:
    """Nothing loops: as many packets as pings."""
    before = served.packets()["answer_echo"]
    assert ping(served, "client", VIPS[family], count=5) == 5
    assert served.packets()["answer_echo"] == before + 5


@both_families
def test_explain_tells_of_it(served: Cluster, family: int) -> None:
    words = [CLIENTS[family], f"{VIPS[family]}/icmp"]
    text = served.agent.cli("explain", *words, "--expect", "answer_echo").stdout
    assert "decides about pings" in text
    assert "answered (answer_echo)" in text
    web(served)
    wait_silence(served, VIPS[family])
    text = served.agent.cli("explain", *words, "--expect", "drop_no_backend").stdout
    assert "no frontend of the address has a backend" in text


@both_families
def test_explain_under_other_manifests(served: Cluster, family: int, tmp_path: Path) -> None:
    """What would this node do with pings if the Service had no backend?"""
    manifest = Manifest("web", VIPS, [])
    manifest.write(tmp_path)
    words = [CLIENTS[family], f"{VIPS[family]}/icmp", "-f", str(tmp_path)]
    served.agent.cli("explain", *words, "--expect", "drop_no_backend")
    assert ping(served, "client", VIPS[family]) == 2


@both_families
def test_monitor_shows_an_answered_ping(served: Cluster, family: int) -> None:
    assert ping(served, "client", VIPS[family]) == 2
    words = ("--reason", "answer_echo", f"-{6 if family else 4}", "-o", "json")
    text = served.agent.cli("monitor", "--last", "500", "--count", "1", *words).stdout
    assert VIPS[family] in text or BALANCERS[family] in text


def test_off_it_is_the_stack_s() -> None:
    with opened("xdp", ["--no-echo-reply"]) as cluster:
        web(cluster, "b1")
        cluster.agent.start()
        assert is_silent(cluster, VIP4)
        counted = cluster.packets()
        assert not counted["answer_echo"]
        assert not counted["drop_no_backend"]


def test_on_and_off_in_a_running_agent() -> None:
    with opened("tc", []) as cluster:
        config = cluster.folder.parent / "agent.yaml"
        config.write_text("echo-reply: true\n")
        cluster.agent.arguments = [*cluster.agent.arguments, "--config", str(config)]
        web(cluster, "b1")
        cluster.agent.start()
        wait_answer(cluster, VIP4)
        config.write_text("echo-reply: false\n")
        cluster.agent.process.send_signal(signal.SIGHUP)
        wait_silence(cluster, VIP4)  # the stack's
        config.write_text("echo-reply: true\n")
        cluster.agent.process.send_signal(signal.SIGHUP)
        wait_answer(cluster, VIP4)
