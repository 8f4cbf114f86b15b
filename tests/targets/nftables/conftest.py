"""Laboratories whose agent serves with nftables: one a module, as building one takes a second."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

_number = itertools.count()
NODE_IPS = ("10.77.0.1", "fd77::1")
ARGUMENTS = ("--renderer", "nftables", *(word for ip in NODE_IPS for word in ("--node-ip", ip)))
IN_NAMESPACES = frozenset(
    {"test_nft_table", "test_nft_service_renderer", "test_packets", "test_restart", "test_connections"}
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in namespaces need root; the laboratory's devices have XDP programs that pass, so BPF too."""
    for item in items:
        if "/targets/nftables/" in str(item.path) and item.path.stem in IN_NAMESPACES:
            item.add_marker(pytest.mark.root)
            if item.path.stem not in ("test_nft_table", "test_nft_service_renderer"):
                item.add_marker(pytest.mark.bpf)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A running agent that serves web and dns on all three backends."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    with Lab(tag=f"nft{next(_number)}-") as lab:
        lab.serve_all()
        lab.node.ip("route add default via 10.77.0.2", "route add default via fd77::2")  # as nodes have
        made = Cluster(lab, "tc", ARGUMENTS)
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


@pytest.fixture
def served(cluster: Cluster) -> Cluster:
    """The cluster with web and dns on all three backends again, whatever the test before did."""
    for path in cluster.folder.iterdir():
        if path.name not in ("web.yaml", "dns.yaml"):
            path.unlink()
            gone = path.stem
            wait_for(lambda: cluster.selectable(gone) is None, f"the end of {gone}")  # noqa: B023 - called here
    cluster.serve(cluster.web(), cluster.dns())
    return cluster
