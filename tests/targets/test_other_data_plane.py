"""Where an agent cannot take over from the other data plane of an earlier agent, it does not start: both would translate packets."""

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
def test_the_other_data_plane_is_refused_where_it_cannot_be_taken_over(lab: Lab, first: str) -> None:
    made = Cluster(lab, "tc")
    agent, earlier, later = made.agent, ["--renderer", first, *NODE_IP], ["--renderer", OTHER[first], *NODE_IP]
    made.web().write(made.folder)
    agent.arguments = earlier
    agent.start()
    running = agent.process
    assert running is not None

    agent.arguments = [*later, "--socket", str(lab.folder / "other.sock"), "--state-dir", str(lab.folder / "other")]
    agent.start(wait=False)
    assert agent.process is not None
    assert agent.process.wait(30) == 4
    assert f"(pid {running.pid})" in agent.tail()
    agent.process = running
    assert agent.stop() == 0

    agent.arguments = ["--renderer", f"{OTHER[first]}=family=ipv4", *NODE_IP]
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
