"""Routes of a kernel by their protocol number: made, listed, removed; those of other programs are not seen."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from lbagent.errors import KernelError
from lbagent.net.pod_routes import PodRoute, PodRoutes
from tests.lab.netns import Namespace

pytestmark = [pytest.mark.root]
OURS = PodRoutes(7654, 79)
ONE, SIX = PodRoute("10.244.1.0/24", "192.0.2.11"), PodRoute("fd00:244:1::/64", "fd00:90::11")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    namespace = Namespace("podroutes")
    namespace.ip(
        "link add machines type veth peer name machines-end",
        "link set machines up",
        "link set machines-end up",
        "addr add 192.0.2.1/24 dev machines",
        "addr add fd00:90::1/64 dev machines nodad",
    )
    yield namespace
    namespace.delete()


def listed(namespace: Namespace) -> list[PodRoute]:
    return sorted(namespace.call(asyncio.run, OURS.list()), key=lambda each: each.destination)


def test_ours_alone_are_listed(namespace: Namespace) -> None:
    for each in (ONE, SIX):
        namespace.call(asyncio.run, OURS.add(each.destination, each.gateway))
    namespace.ip(
        "route add 10.244.2.0/24 via 192.0.2.12 table 7654 proto 80",
        "route add 10.244.3.0/24 via 192.0.2.12 table 7655 proto 79",
        "route add blackhole 10.244.4.0/24 table 7654 proto 79",
        "route add 10.244.5.0/24 dev machines table 7654 proto 79",
    )
    hole, device = PodRoute("10.244.4.0/24", "", "blackhole"), PodRoute("10.244.5.0/24")
    assert listed(namespace) == [ONE, hole, device, SIX]
    for each in (hole, device, SIX, SIX):  # one that is gone is no error
        namespace.call(asyncio.run, OURS.delete(each))
    assert listed(namespace) == [ONE]
    other = PodRoutes(7654, 80)
    namespace.call(asyncio.run, other.delete(ONE))
    assert listed(namespace) == [ONE]


def test_what_cannot_be_made(namespace: Namespace) -> None:
    namespace.ip("route add 10.244.1.0/24 via 192.0.2.12 table 7654 proto 80")
    with pytest.raises(KernelError, match="another program has a route to it") as caught:
        namespace.call(asyncio.run, OURS.add(ONE.destination, ONE.gateway))
    assert caught.value.errno == errno.EEXIST
    with pytest.raises(KernelError, match="no device of this machine reaches the gateway"):
        namespace.call(asyncio.run, OURS.add("10.244.9.0/24", "203.0.113.1"))
