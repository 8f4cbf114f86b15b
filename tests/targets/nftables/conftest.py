"""Laboratories whose agent serves with nftables: one a module, as building one takes a second."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, routed_lab
from tests.lab.netns import wait_for

_number = itertools.count()
NODE_IPS = ("10.77.0.1", "fd77::1")
ARGUMENTS = ("--renderer", "nftables", *(word for ip in NODE_IPS for word in ("--node-ip", ip)))
IN_NAMESPACES = frozenset(
    {"test_nft_table", "test_nft_service_renderer", "test_packets", "test_restart", "test_connections", "test_egress"}
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
    with routed_lab(f"nft{next(_number)}-") as lab:
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
