"""The rule and the route of a mark: made once, removed, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lbagent.errors import KernelError
from lbagent.model.family import Family
from lbagent.net import proxy_route
from lbagent.net.netlink import NetworkWatcher
from tests.lab.netns import Namespace

pytestmark = [pytest.mark.root]
MARK = 0x4C37
BOTH = tuple(Family)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    namespace = Namespace("proxyroute")
    yield namespace
    namespace.delete()


def shown(namespace: Namespace, family: Family) -> list[str]:
    """Return the lines of rules with the mark and of the table."""
    ip = ["ip", f"-{family.digit}"]
    lines = namespace.run([*ip, "rule", "show"]).stdout.splitlines()
    found = [line for line in lines if "fwmark" in line]
    return found + namespace.run([*ip, "route", "show", "table", str(MARK)]).stdout.splitlines()


def test_both_families(namespace: Namespace) -> None:
    add, remove = proxy_route.add, proxy_route.remove
    assert namespace.call(asyncio.run, add(MARK, BOTH))
    for family in Family:
        rule, route = shown(namespace, family)
        assert rule.startswith("19:")
        assert "fwmark 0x4c37 lookup 19511" in rule
        assert route.startswith("local default dev lo")
    assert not namespace.call(asyncio.run, add(MARK, BOTH)), "nothing was missing"
    namespace.run(["ip", "-6", "rule", "del", "fwmark", "0x4c37"])
    assert namespace.call(asyncio.run, add(MARK, BOTH))
    assert len(shown(namespace, Family.IPV6)) == 2
    namespace.ip("rule add fwmark 0x4c38 table 77")
    assert namespace.call(asyncio.run, remove(MARK))
    assert [len(shown(namespace, family)) for family in Family] == [1, 0], "another program's rule stays"
    assert not namespace.call(asyncio.run, remove(MARK)), "nothing was there"


def test_one_family(namespace: Namespace) -> None:
    assert namespace.call(asyncio.run, proxy_route.add(MARK, [Family.IPV6]))
    assert [len(shown(namespace, family)) for family in Family] == [0, 2]


def test_a_device_that_is_down(namespace: Namespace) -> None:
    namespace.ip("link set lo down")
    with pytest.raises(KernelError, match="the route of mark 0x4c37"):
        namespace.call(asyncio.run, proxy_route.add(MARK, BOTH))


def test_it_is_no_rule_that_routes_packets_to_backends(namespace: Namespace) -> None:
    """With a rule of others the next hops of backends are not certain; with this one they are."""

    async def policies() -> tuple[bool, bool]:
        watcher = NetworkWatcher()
        try:
            network = await watcher.start()
        finally:
            watcher.close()
        return network.policy4, network.policy6

    namespace.call(asyncio.run, proxy_route.add(MARK, BOTH))
    assert namespace.call(asyncio.run, policies()) == (False, False)
    namespace.run(["ip", "-6", "rule", "add", "from", "fd00::1", "table", "77"])
    assert namespace.call(asyncio.run, policies()) == (False, True)
