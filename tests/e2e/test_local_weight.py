"""--local-endpoint-weight with real connections: the share of the endpoint on this node, with both data planes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, routed_lab
from tests.lab.topology import Lab

pytestmark = [pytest.mark.root, pytest.mark.bpf]
CONNECTIONS = 3000
WEIGHT = 4


@pytest.fixture
def lab() -> Iterator[Lab]:
    with routed_lab("weight-") as lab:
        yield lab


@pytest.mark.parametrize("renderer", ["bpf", "nftables"])
def test_the_share_of_the_local_endpoint(lab: Lab, renderer: str) -> None:
    """b3 is on this node: w * 1 / (w * 1 + 2). The bounds are 6.5 standard deviations of so many connections."""
    arguments = ["--renderer", renderer, "--node-ip", "10.77.0.1", "--local-endpoint-weight", str(WEIGHT)]
    made = Cluster(lab, "tc", arguments)
    made.web().write(made.folder)
    made.agent.start()
    found = made.http(CONNECTIONS)
    share = WEIGHT / (WEIGHT + 2)
    deviation = (share * (1 - share) / CONNECTIONS) ** 0.5
    assert abs(found["b3"] / found.total() - share) < 6.5 * deviation, found
    assert {"b1", "b2"} <= set(found)
