"""The node of a backend changes in its objects during connections: they continue, and the path follows the objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.e2e.cluster import NODE, VIP4, VIP6, Cluster
from tests.lab.manifests import Manifest
from tests.lab.netns import wait_for


def placed(manifest: Manifest, **nodes: str) -> Manifest:
    """The manifest with backends on other nodes: b1="n1" moves both families' addresses of b1."""
    ends = {"b1": ("10.77.1.2", "fd77:1::2"), "b3": ("10.244.0.2", "fd44::2")}
    where = {address: node for name, node in nodes.items() for address in ends[name]}
    return replace(manifest, endpoints=[replace(e, node=where.get(e.address, e.node)) for e in manifest.endpoints])


def wait_node(cluster: Cluster, address: str, node: str) -> None:
    """Wait until the agent has the address (and port 8080) on that node in its maps."""
    wait_for(
        lambda: (
            [b["node"] for b in cluster.agent.api.backends() if b["address"].startswith(f"{address}:8080")] == [node]
        ),
        f"{address} on {node or 'no node'}",
    )


def place(cluster: Cluster, **nodes: str) -> None:
    """Write web and dns, which have the same addresses, with backends on other nodes."""
    cluster.serve(placed(cluster.web(), **nodes), placed(cluster.dns(), **nodes))


@pytest.fixture
def restored(served: Cluster) -> Iterator[Cluster]:
    """The cluster, and its slices as they were at the end."""
    yield served
    place(served)
    wait_node(served, "10.77.1.2", "node-b1")
    wait_node(served, "10.244.0.2", NODE)


@pytest.mark.parametrize("vip", [VIP4, VIP6], ids=["ipv4", "ipv6"])
def test_connections_live_on_when_the_place_of_their_backend_changes(restored: Cluster, vip: str) -> None:
    """The pod's flows keep the client's address although its node changed, those of the remote backend their SNAT port."""
    talkers = restored.talkers(60, vip)
    try:
        assert {"b1", "b3"} <= set(talkers.first)
        place(restored, b3="node-b2")
        wait_node(restored, "10.244.0.2", "node-b2")
        assert talkers.ask() == talkers.first
        place(restored, b1=NODE)
        wait_node(restored, "10.77.1.2", NODE)
        wait_node(restored, "10.244.0.2", NODE)
        assert talkers.ask() == talkers.first
        place(restored)
        wait_node(restored, "10.77.1.2", "node-b1")
        assert talkers.ask() == talkers.first
    finally:
        talkers.close()
    assert restored.agent.cli("verify", "--bpffs", str(restored.lab.bpffs)).stdout == ""


def test_a_service_that_places_a_backend_here_changes_nothing_for_long(restored: Cluster) -> None:
    """It contradicts the other one, which a warning reports; after its removal new flows go to the remote backend by SNAT again."""
    claim = Manifest("claim", ("10.96.0.77", "fd00:96::77"), placed(restored.web("b1"), b1=NODE).endpoints)
    restored.serve(restored.web("b1"))
    claim.write(restored.folder)
    wait_for(
        lambda: any("10.77.1.2 is on node" in text for text in restored.agent.api.status()["problems"]), "the warning"
    )
    assert restored.http(20) == {"b1": 20}
    next(path for path in restored.folder.iterdir() if path.stem == "claim").unlink()
    wait_node(restored, "10.77.1.2", "node-b1")
    before = restored.packets()
    assert restored.http(20) == {"b1": 20}
    after = restored.packets()
    assert after["fwd_local"] == before["fwd_local"]
    assert after["fwd_new"] - before["fwd_new"] == 20
    assert restored.agent.cli("verify", "--bpffs", str(restored.lab.bpffs)).stdout == ""
