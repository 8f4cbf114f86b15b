"""Laboratories for the end-to-end tests: one per module and attach mode, as building one takes a second."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.lab import cgroup
from tests.lab.netns import wait_for
from tests.lab.topology import Lab

NODE_ADDRESSES = ("10.77.1.1", "fd77:1::1")
_number = itertools.count()  # several laboratories may exist at once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs root and BPF."""
    for item in items:
        if "/e2e/" in str(item.path):
            item.add_marker(pytest.mark.root)
            item.add_marker(pytest.mark.bpf)


@contextlib.contextmanager
def opened(attach: str, arguments: Sequence[str] = ()) -> Iterator[Cluster]:
    """Build a laboratory with servers and an agent that is not started."""
    with Lab(tag=f"{attach}{next(_number)}-") as lab:
        lab.serve_all()
        yield Cluster(lab, attach, arguments)


@pytest.fixture(scope="session", autouse=True)
def as_root() -> None:
    """Skip if namespaces cannot be created."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")


@pytest.fixture(scope="module", params=["xdp", "tc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running agent that serves web and dns on all three backends, attached both ways."""
    with opened(request.param) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


@pytest.fixture
def served(cluster: Cluster) -> Cluster:
    """The cluster with web and dns on all three backends again, after any earlier test."""
    for path in cluster.folder.iterdir():
        if path.name not in ("web.yaml", "dns.yaml"):
            path.unlink()
    web, dns = cluster.web(), cluster.dns()
    cluster.serve(web, dns)
    names = {web.name, dns.name}
    wait_for(lambda: {row["name"] for row in cluster.agent.api.services()} <= names, "the end of other Services", 30)
    return cluster


@pytest.fixture
def fresh() -> Iterator[Callable[..., Cluster]]:
    """Create laboratories for one test: fresh(attach, *agent flags); the agent is not started."""
    with contextlib.ExitStack() as stack:

        def make(attach: str = "xdp", *arguments: str) -> Cluster:
            return stack.enter_context(opened(attach, arguments))

        yield make


@pytest.fixture(scope="module")
def group() -> Iterator[Path]:
    """A cgroup for processes of the node."""
    with cgroup.made() as path:
        yield path


@pytest.fixture(scope="module")
def socket_cluster(group: Path) -> Iterator[Cluster]:
    """A cluster whose node has socket programs on this cgroup; a module's `cluster` returns it."""
    ips = [word for address in NODE_ADDRESSES for word in ("--node-ip", address)]
    with opened("tc", ["--socket-lb", "--cgroup", str(group), *ips]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


@pytest.fixture
def inside(served: Cluster, group: Path) -> Iterator[Cluster]:
    """This test is a process of the node."""
    with cgroup.joined(group), served.lab.node.entered():
        yield served
