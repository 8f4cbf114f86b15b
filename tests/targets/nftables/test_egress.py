"""--egress-snat: whose packets get the node's address when they leave, with real sockets; no Service is served."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, routed_lab
from tests.lab import traffic
from tests.lab.manifests import put
from tests.lab.netns import Namespace, run, wait_for
from tests.lab.topology import Lab

VXLAN, OTHER = 4789, 4790
POD, NODE = {4: "10.244.0.2", 6: "fd44::2"}, {4: "10.77.0.1", 6: "fd77::1"}
OUTSIDE, REMOTE = {4: "10.77.0.2", 6: "fd77::2"}, {4: "10.77.1.2", 6: "fd77:1::2"}
TO_REMOTE = {4: "10.77.1.1", 6: "fd77:1::1"}  # the node's address towards b1
POD_RANGES = ("10.244.0.0/16", "fd44::/16")
ARGUMENTS = ("--no-services", "--egress-snat", "on")
_ports = itertools.count(6000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with routed_lab("egr-") as lab:
        made = Cluster(lab, "tc", (*ARGUMENTS, "--config", str(give_ranges(lab, *POD_RANGES))))
        made.web().write(made.folder)
        made.agent.start()
        yield made


def give_ranges(lab: Lab, *ranges: str) -> Path:
    """Write the file with --cluster-cidr."""
    return put(lab.folder, "agent.yaml", f"cluster-cidr: {list(ranges)}\n")


def seen_source(cluster: Cluster, version: int, target: str, port: int, sender: Namespace, at: Namespace) -> str:
    """Return the source address of a datagram that arrives."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with contextlib.ExitStack() as stack:
        with at.entered():
            server = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            server.bind(("::" if version == 6 else "0.0.0.0", port))
        with sender.entered():
            client = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            client.sendto(b"x", (target, port))
        server.settimeout(3)
        return str(server.recvfrom(10)[1][0])


def from_pod(cluster: Cluster, version: int, target: str, port: int, at: Namespace) -> str:
    return seen_source(cluster, version, target, port, cluster.lab.namespaces["b3"], at)


@pytest.mark.parametrize("version", [4, 6])
def test_a_pod_has_the_address_of_the_node_outside(cluster: Cluster, version: int) -> None:
    assert from_pod(cluster, version, OUTSIDE[version], OTHER, cluster.client) == NODE[version]


@pytest.mark.parametrize("version", [4, 6])
def test_the_overlay_network_keeps_its_addresses(cluster: Cluster, version: int) -> None:
    cluster.client.ip(f"route add {POD_RANGES[version == 6]} via {NODE[version]}")
    assert from_pod(cluster, version, OUTSIDE[version], VXLAN, cluster.client) == POD[version]


@pytest.mark.parametrize("version", [4, 6])
def test_a_node_sees_the_pod_once_its_object_is_there(cluster: Cluster, version: int) -> None:
    b1 = cluster.lab.namespaces["b1"]
    ask = lambda: from_pod(cluster, version, REMOTE[version], next(_ports), b1)  # noqa: E731
    assert ask() == TO_REMOTE[version]
    put(cluster.folder, "node.yaml", NODE_OBJECT)
    wait_for(lambda: ask() == POD[version], "the address of the pod", 5)
    (cluster.folder / "node.yaml").unlink()
    wait_for(lambda: ask() == TO_REMOTE[version], "the address of this node again", 5)


NODE_OBJECT = f"""
apiVersion: v1
kind: Node
metadata: {{name: node-b1}}
status: {{addresses: [{{type: InternalIP, address: {REMOTE[4]}}}, {{type: InternalIP, address: "{REMOTE[6]}"}}]}}
"""


@pytest.mark.parametrize("version", [4, 6])
def test_within_the_ranges_of_pods_nothing_changes(cluster: Cluster, version: int) -> None:
    """Also where the sender is no pod."""
    target = cluster.lab.namespaces["b3"]
    assert seen_source(cluster, version, POD[version], next(_ports), cluster.client, target) == OUTSIDE[version]


def test_processes_of_the_node_keep_their_ports(cluster: Cluster) -> None:
    with cluster.client.entered():
        server = socket.create_server((OUTSIDE[4], OTHER))
    with server, cluster.lab.node.entered(), socket.create_connection((OUTSIDE[4], OTHER), 3) as client:
        accepted, peer = server.accept()
        accepted.close()
        assert peer == client.getsockname()


def test_connections_last_while_the_agent_is_killed(cluster: Cluster) -> None:
    with cluster.client.entered():
        server = socket.create_server((OUTSIDE[4], OTHER))
    with cluster.lab.namespaces["b3"].entered():
        client = socket.create_connection((OUTSIDE[4], OTHER), 3)
    with server, client, server.accept()[0] as accepted:
        accepted.settimeout(3)
        cluster.agent.kill()
        client.sendall(b"one")
        assert accepted.recv(10) == b"one"
        assert from_pod(cluster, 4, OUTSIDE[4], next(_ports), cluster.client) == NODE[4]
        cluster.agent.start()
        client.sendall(b"two")
        assert accepted.recv(10) == b"two"


def test_other_ranges_are_followed(cluster: Cluster) -> None:
    def source() -> str:
        return from_pod(cluster, 4, OUTSIDE[4], next(_ports), cluster.client)

    assert cluster.agent.process is not None
    for ranges, expected in (((*POD_RANGES, "10.77.0.0/24"), POD[4]), (POD_RANGES, NODE[4])):
        give_ranges(cluster.lab, *ranges)
        cluster.agent.process.send_signal(signal.SIGHUP)
        wait_for(lambda expected=expected: source() == expected, f"the address {expected}", 5)  # type: ignore[misc]


def test_a_family_without_ranges_keeps_its_addresses(cluster: Cluster) -> None:
    assert cluster.agent.process is not None
    cluster.client.ip(f"route replace {POD_RANGES[1]} via {NODE[6]}")
    for ranges, expected in ((POD_RANGES[:1], POD[6]), (POD_RANGES, NODE[6])):
        give_ranges(cluster.lab, *ranges)
        cluster.agent.process.send_signal(signal.SIGHUP)
        ask = lambda: from_pod(cluster, 6, OUTSIDE[6], next(_ports), cluster.client)  # noqa: E731
        wait_for(lambda expected=expected, ask=ask: ask() == expected, f"the address {expected}", 5)  # type: ignore[misc]


def test_another_table_stays_as_it_is(cluster: Cluster) -> None:
    rules = "table inet other {\n\tchain out {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\t}\n}\n"
    run(*cluster.lab.node.command(["nft", "-f", "-"]), text=rules)
    cluster.agent.kill()
    cluster.agent.start()
    assert run(*cluster.lab.node.command(["nft", "list", "table", "inet", "other"])) == rules
    run(*cluster.lab.node.command(["nft", "delete", "table", "inet", "other"]))


def test_only_an_agent_repairs_it(cluster: Cluster) -> None:
    """It has the addresses of nodes; what `-f` wants has no chain `egress`."""
    cluster.agent.kill()
    words = ("verify", "-f", str(cluster.folder), "--renderer", "nftables", "--node", "demo-node")
    assert cluster.agent.cli(*words, check=False).returncode == 1  # the Services of the folder are not served
    done = cluster.agent.cli(*words, "--repair", check=False)
    assert done.returncode == 4
    assert "only an agent repairs a table that has --egress-snat" in done.stderr
    assert from_pod(cluster, 4, OUTSIDE[4], next(_ports), cluster.client) == NODE[4]
    cluster.agent.start()


def test_no_service_is_served(cluster: Cluster) -> None:
    assert cluster.agent.json("svc", "list") == []
    with cluster.client.entered(), pytest.raises(OSError):
        traffic.connect("10.96.0.10", 80, timeout_s=0.5)


def test_cleanup_removes_it_and_a_connection_from_before_stays(cluster: Cluster) -> None:
    """The last test of the file: connection tracking began after the connection, which has the pod's address."""
    cluster.agent.stop()
    cluster.agent.cli("cleanup")
    cluster.client.ip(f"route replace {POD_RANGES[0]} via {NODE[4]}")
    assert from_pod(cluster, 4, OUTSIDE[4], next(_ports), cluster.client) == POD[4]
    with cluster.client.entered():
        server = socket.create_server((OUTSIDE[4], OTHER))
    with cluster.lab.namespaces["b3"].entered():
        client = socket.create_connection((OUTSIDE[4], OTHER), 3)
    with server, client, server.accept()[0] as accepted:
        assert accepted.getpeername()[0] == POD[4]
        accepted.settimeout(3)
        cluster.agent.start()
        client.sendall(b"one")
        assert accepted.recv(10) == b"one"
    assert from_pod(cluster, 4, OUTSIDE[4], next(_ports), cluster.client) == NODE[4]
