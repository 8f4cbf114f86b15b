"""Processes of the node reach Services by socket programs (--socket-lb): real sockets in a cgroup of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.cluster import DNS, WEB, Cluster
from tests.e2e.conftest import opened
from tests.lab import cgroup, traffic


@pytest.fixture(scope="module")
def group() -> Iterator[Path]:
    with cgroup.made() as path:
        yield path


@pytest.fixture(scope="module")
def cluster(group: Path) -> Iterator[Cluster]:
    """The agent with socket programs; the node has no route to a VIP: what is not translated at once fails at once."""
    with opened("tc", ["--socket-lb", "--cgroup", str(group)]) as made:
        made.web().write(made.folder)
        made.dns().write(made.folder)
        made.agent.start()
        yield made


@pytest.fixture
def inside(served: Cluster, group: Path) -> Iterator[Cluster]:
    """This test is a process of the node."""
    with cgroup.joined(group), served.lab.node.entered():
        yield served


def test_every_family_and_protocol_reaches_every_backend(inside: Cluster) -> None:
    for vip, port, ask in [(vip, 80, traffic.http_get) for vip in WEB] + [(vip, 53, traffic.dns_ask) for vip in DNS]:
        seen = traffic.spread(inside.lab.node, 60, partial(ask, vip, port))
        assert set(seen) == {"b1", "b2", "b3"}
        assert sum(seen.values()) == 60
