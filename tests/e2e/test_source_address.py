"""A path keeps its source address: a further address on the device, or another agent, ends no connection."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.cluster import WEB, Cluster
from tests.lab import traffic
from tests.lab.netns import wait_for

FIRST, SECOND = ("10.77.1.1", "fd77:1::1"), ("10.77.1.3", "fd77:1::77")


def seen_as(cluster: Cluster, vip: str) -> str:
    """Return the client's address of a new connection at the backend."""
    with cluster.client.entered():
        return traffic.http_get(vip, 80).client


@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_connections_outlive_a_new_address_and_a_restart(fresh: Callable[..., Cluster], attach: str) -> None:
    """The new IPv4 address has the smaller subnet and with it the kernel's route; of IPv6 the newest is the first."""
    cluster = fresh(attach)
    cluster.web("b1").write(cluster.folder)
    cluster.agent.start()
    with cluster.client.entered():
        sockets = [traffic.connect(vip, 80) for vip in WEB]

    def clients() -> list[str]:
        return [traffic.request(sock).decode().split()[1] for sock in sockets]

    assert clients() == list(FIRST)
    cluster.lab.node.ip(f"addr add {SECOND[0]}/28 dev lan1")
    cluster.lab.node.ip(f"addr add {SECOND[1]}/64 dev lan1 nodad")
    until = time.monotonic() + 2  # the agent receives the event within milliseconds
    while time.monotonic() < until:
        assert clients() == list(FIRST)
        assert [seen_as(cluster, vip) for vip in WEB] == list(FIRST)
    assert cluster.agent.cli("verify", check=False).returncode == 0
    cluster.agent.stop()
    cluster.agent.start()
    assert clients() == list(FIRST)
    assert [seen_as(cluster, vip) for vip in WEB] == list(FIRST)
    assert cluster.agent.cli("verify", check=False).returncode == 0
    for sock in sockets:
        sock.close()

    cluster.lab.node.ip(f"addr del {FIRST[0]}/24 dev lan1")
    cluster.lab.node.ip(f"addr del {FIRST[1]}/64 dev lan1")
    wait_for(lambda: [_try(cluster, vip) for vip in WEB] == list(SECOND), "the next address", 20)


def _try(cluster: Cluster, vip: str) -> str:
    try:
        return seen_as(cluster, vip)
    except OSError:
        return ""
