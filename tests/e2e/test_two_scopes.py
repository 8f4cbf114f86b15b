"""Traffic policy Local: pods have other backends than clients outside, until both have the same ones; no connection ends by that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.cluster import NODE, Cluster, routed_lab
from tests.lab.netns import wait_for
from tests.lab.topology import Lab
from tests.lab.traffic import Talkers

VIP = "198.51.100.50"
LOCAL = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "externalIPs": [VIP]}
SWEEPS = 3  # a row that is gone takes its connections with one


@pytest.fixture
def lab() -> Iterator[Lab]:
    with routed_lab("scopes-") as lab:
        lab.add_pod("caller", "pod4", "10.244.1", "fd45")
        yield lab


def wait_for_sweeps(made: Cluster) -> None:
    """Wait for further sweeps of the flow tables."""
    before = made.agent.api.status()["sweeps"]
    wait_for(lambda: made.agent.api.status()["sweeps"] >= before + SWEEPS, "the sweeps")


def differences(made: Cluster, manifests: Path) -> str:
    """Return what `verify -f` finds."""
    words = ("--node", NODE, "--pod-device", "pod*", "--bpffs", str(made.lab.bpffs), "--node-ip", "10.77.0.1")
    return made.agent.cli("verify", "-f", str(manifests), *words, check=False).stdout


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.parametrize("renderer", ["bpf", "nftables"])
def test_a_pod_keeps_its_connections_when_both_scopes_become_one(lab: Lab, renderer: str) -> None:
    """Also over a restart of the agent; and the data plane is what the manifests require all the time."""
    made = Cluster(lab, "tc", ["--renderer", renderer, "--sweep-interval", "1s", "--node-ip", "10.77.0.1"])
    made.web(spec=LOCAL).write(made.folder)
    made.agent.start()
    with closing(Talkers(lab.namespaces["caller"], VIP, 80, 60)) as talkers:
        assert set(talkers.first) == {"b1", "b2", "b3"}
        made.serve(made.web("b3", spec=LOCAL))
        kept = [at for at, name in enumerate(talkers.first) if name == "b3"]
        for restart in (False, True):
            if restart:
                made.agent.kill()
                made.agent.start()
            if renderer == "bpf":
                wait_for_sweeps(made)
            answers = talkers.ask()
            assert [answers[at] for at in kept] == ["b3"] * len(kept)
            assert made.agent.cli("verify").stdout == ""
            assert differences(made, made.folder) == ""
