"""A real kube-proxy is replaced by lbagent and takes over again, during requests and with open connections (docs/kubernetes.md)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube_api.cluster import Cluster
from tests.kube_api.migration import IN_FLIGHT, MigratingNode, served_by_kube_proxy
from tests.kube_api.programs import Programs
from tests.lab.netns import wait_for
from tests.lab.traffic import Load

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
CLEAN = "nothing of kube-proxy is on this node"
WAYS = [("nftables", "tc"), ("nftables", "xdp")]


@pytest.fixture(params=WAYS, ids="-".join)
def node(request: pytest.FixtureRequest, cluster: Cluster, programs: Programs) -> Iterator[MigratingNode]:
    """A node that kube-proxy serves, in one of its modes, with the hook that lbagent will use."""
    with served_by_kube_proxy(cluster, programs, *request.param) as one:
        yield one


def few_failed(loads: dict[str, Load]) -> None:
    """Programs are attached to, and detached from, devices in sequence: an answer that arrives by another device than its request may be lost."""
    assert all(len(load.tally.failures) <= IN_FLIGHT < load.tally.total for load in loads.values())


def nothing_failed(loads: dict[str, Load]) -> None:
    assert {place: load.tally.failures for place, load in loads.items() if load.tally.failures} == {}
    assert all(load.tally.total > 100 for load in loads.values())


@pytest.mark.timeout(600)  # several minutes of processor time on a busy machine
def test_there_and_back(node: MigratingNode) -> None:
    come(node)
    leave(node)


def come(node: MigratingNode) -> None:
    """lbagent starts while kube-proxy runs, which then stops and is cleaned up: no connection ends, and no request fails except at the start."""
    agent, kube_proxy = node.agent, node.kube_proxy
    earlier = node.open()
    node.set_new_flows("syn")
    with node.asked() as loads:
        agent.start()
    few_failed(loads)
    assert earlier.go_on()
    later = node.open()
    assert "kube-proxy (pid" in node.leftovers()
    for what in (kube_proxy.stop, kube_proxy.cleanup):
        assert CLEAN not in node.leftovers()
        with node.asked() as loads:
            what()
        nothing_failed(loads)
        assert earlier.go_on()
        assert later.go_on()
    assert CLEAN in node.leftovers()
    wait_for(lambda: agent.cli("status", check=False).returncode == 0, "kube-proxy's ports", 60)
    with node.asked() as loads:
        node.set_new_flows("any")
    nothing_failed(loads)
    assert later.go_on()
    assert "ConnectionResetError" in earlier.ask()["outside"]  # taken over, with a backend that does not have it


def leave(node: MigratingNode) -> None:
    """kube-proxy starts, lbagent stops and is cleaned up: then its connections end with RST, except those of the node's processes."""
    agent = node.agent
    earlier = node.open()
    for what in (node.start_kube_proxy, agent.stop):
        with node.asked() as loads:
            what()
        nothing_failed(loads)
        assert earlier.go_on()
    with node.asked() as loads:
        agent.cli("cleanup")
    few_failed(loads)
    ends = earlier.ask()
    assert set(ends["node"]) == {"same"}  # connected to the backend itself
    assert set(ends["pod"]) | set(ends["outside"]) == {"ConnectionResetError"}
    assert node.open().go_on()
