"""A data plane that an earlier agent left in force: no second one starts beside it, as both would translate each packet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, routed_lab
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
NODE_IP = ("--node-ip", "10.77.0.1", "--node-ip", "fd77::1")
OTHER = {"bpf": "nftables", "nftables": "bpf"}
LEFT = {"bpf": "tc_ingress on wan", "nftables": "table inet lbagent"}


@pytest.fixture
def lab() -> Iterator[Lab]:
    with routed_lab("other-") as lab:
        yield lab


@pytest.mark.parametrize("first", ["bpf", "nftables"])
def test_the_other_data_plane_is_refused_until_cleanup(lab: Lab, first: str) -> None:
    made = Cluster(lab, "tc")
    agent, earlier, later = made.agent, ["--renderer", first, *NODE_IP], ["--renderer", OTHER[first], *NODE_IP]
    made.web().write(made.folder)
    agent.arguments = earlier
    agent.start()
    assert agent.stop() == 0

    agent.arguments = later
    agent.start(wait=False)
    assert agent.ended_or_ready() == 4
    assert f"the data plane {first} of an earlier agent is in force" in agent.tail()
    assert LEFT[first] in agent.tail()
    assert "lbagent cleanup" in agent.tail()
    assert set(made.http()) == {"b1", "b2", "b3"}, "it serves on"

    agent.arguments = earlier
    agent.start()  # its own is no other one
    assert agent.stop() == 0
    agent.cli("cleanup")
    agent.arguments = later
    agent.start()
    assert set(made.http()) == {"b1", "b2", "b3"}
