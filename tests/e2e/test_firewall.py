"""A firewall on the node that drops invalid packets of conntrack, as many do: the statements and the rule of docs/network.md."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import WEB, Cluster
from tests.lab import traffic
from tests.lab.netns import Namespace

pytestmark = pytest.mark.skipif(shutil.which("nft") is None, reason="nft is not installed")
DROPS = "table inet filter { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }"
ADVICE = 'insert rule inet filter forward oifname "pod*" accept'


@pytest.fixture
def node(served: Cluster) -> Iterator[Namespace]:
    """The node, with a default route, as nodes have; its rules are removed at the end."""
    node = served.lab.node
    node.ip("route replace default via 10.77.0.2", "route replace default via fd77::2")
    yield node
    nft(node, "flush ruleset")


def nft(node: Namespace, rules: str) -> None:
    subprocess.run(node.command(["nft", "-f", "-"]), input=rules, text=True, check=True)


def answers(client: Namespace, count: int = 60) -> set[str]:
    """Return the backends of new connections to both VIPs, and `nobody` for one that timed out: it is the last one."""
    out = set()
    with client.entered():
        for number in range(count):
            try:
                with traffic.connect(WEB[number % 2], 80) as sock:
                    out.add(traffic.request(sock).decode().split()[0])
            except TimeoutError:
                return out | {"nobody"}
    return out


def doctor(cluster: Cluster) -> str:
    return cluster.agent.cli("doctor", "--device", "wan", "--pod-device", "pod*", check=False).stdout


def test_a_rule_against_invalid_packets_loses_connections_to_local_backends(served: Cluster, node: Namespace) -> None:
    """Not those of a pod, to backends on other nodes and to itself; with the rule of the document nothing is lost."""
    pod, outside = served.lab.namespaces["b3"], served.client
    assert "drops `ct state invalid`" not in doctor(served)
    nft(node, DROPS)
    assert "a rule in the chain inet filter forward drops `ct state invalid`" in doctor(served)
    assert "nobody" in answers(outside)
    assert answers(pod) == {"b1", "b2", "b3"}
    nft(node, ADVICE)
    assert answers(outside) == {"b1", "b2", "b3"}
    assert answers(pod) == {"b1", "b2", "b3"}
