"""How many connections an L7 proxy has, as the programs read it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from lbagent.kernel.sock_diag import ConnectedSocket
from lbagent.maps.layout import LB_RULES
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.targets.bpf.proxy_connections import MAX_PORTS, Frontends, ProxyConnections
from tests.sync.rig import SMALL

FOUR, SIX, NODE = (L3n4Addr.parse(text) for text in ("10.96.0.1:80/TCP", "[fd00:96::1]:80/TCP", "192.0.2.1:30080/TCP"))
DATAGRAMS = L3n4Addr.parse("10.96.0.1:80/UDP")
TICK = 777


def sock(text: str) -> ConnectedSocket:
    """Return a connection whose own address this is."""
    own = L3n4Addr.parse(f"{text}/TCP")
    family = 2 if len(own.address) == 4 else 10
    return ConnectedSocket(family, struct.pack(">HH", own.port, 40000) + own.address.ljust(44, b"\0"))


class Node:
    """Its connections, and the ports by which they were listed."""

    def __init__(self, limited: Frontends, *connections: str) -> None:
        self.maps = MemoryMaps(SMALL)
        self.connections = [sock(each) for each in connections]
        self.listed: list[int] = []
        self.counter = ProxyConnections(self.maps, lambda: limited, self._list_at, lambda: TICK)

    def _list_at(self, port: int) -> Sequence[ConnectedSocket]:
        self.listed.append(port)
        return [each for each in self.connections if port in (0, each.local[1])]

    def admit(self, number: int, count: int) -> None:
        """Count SYNs as the programs do."""
        with self.maps.window("lb_rules", number * LB_RULES.size, LB_RULES.size) as view:
            view[60:64] = struct.pack("=I", struct.unpack("=I", view[60:64])[0] + count & 0xFFFFFFFF)

    def record(self, number: int) -> tuple[int, int]:
        """Return (connections, tick) as the programs read them."""
        with self.maps.window("lb_rules", number * LB_RULES.size, LB_RULES.size) as view:
            tick = struct.unpack("=I", view[16:20])[0]
            proxied, admitted = struct.unpack("=II", view[56:64])
        return (proxied + admitted) & 0xFFFFFFFF, tick


@pytest.mark.parametrize("before", [0, 5, 0xFFFFFFFF])
async def test_connections_of_all_frontends_of_a_service(before: int) -> None:
    node = Node(
        {3: [FOUR, SIX, NODE, DATAGRAMS], 4: [L3n4Addr.parse("10.96.0.2:80/TCP")]},
        "10.96.0.1:80", "10.96.0.1:80", "[fd00:96::1]:80", "192.0.2.1:30080", "10.96.0.1:81", "192.0.2.1:80", "10.96.0.2:80",
    )  # fmt: skip
    node.admit(3, before)
    await node.counter.count()
    assert node.record(3) == (4, TICK)
    assert node.record(4) == (1, TICK)
    assert sorted(node.listed) == [80, 30080]
    node.admit(3, 2)
    assert node.record(3) == (6, TICK), "two SYNs since then"
    node.connections = node.connections[2:]
    await node.counter.count()
    assert node.record(3) == (2, TICK)


async def test_a_range_of_ports_and_many_ports_take_one_look() -> None:
    ranged = L3n4Addr(FOUR.address, 8000, FOUR.protocol, last_port=8010)
    node = Node({3: [ranged]}, "10.96.0.1:8000", "10.96.0.1:8010", "10.96.0.1:8011")
    await node.counter.count()
    assert (node.record(3), node.listed) == ((2, TICK), [0])
    node = Node({3: [L3n4Addr(FOUR.address, port, FOUR.protocol) for port in range(1, MAX_PORTS + 2)]}, "10.96.0.1:3")
    await node.counter.count()
    assert (node.record(3), node.listed) == ((1, TICK), [0])


async def test_without_limits_nothing_is_listed() -> None:
    node = Node({})
    await node.counter.count()
    assert not node.listed
