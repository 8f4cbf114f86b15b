"""The next-hop table: what programs may find in it at any moment."""

from __future__ import annotations

import random
import struct

from msgspec.structs import replace

from lbagent.maps.memory_maps import MemoryMaps
from lbagent.net.snapshot import Link
from lbagent.targets.bpf.device_table import stacked_devices, write_devices
from lbagent.targets.bpf.nexthop import CAPACITY, NextHopTable, outdated_hops
from tests.net.builders import CNI0, DOWN, ETH0, MAC, NEIGHBOURS, ROUTES, ip, network, route

GW, PEER, GW6 = (ETH0, ip("10.0.0.254")), (ETH0, ip("10.0.0.7")), (ETH0, ip("fe80::1"))
REUSE_S = 100.0


def record(maps: MemoryMaps, index: int) -> tuple[bytes, bytes, int]:
    """(destination MAC, source MAC, ifindex) by the layout C sees: 6 + 6 + 4 bytes."""
    with maps.window("lb_nexthop", index * 16, 16) as view:
        raw = bytes(view)
    return raw[:6], raw[6:12], struct.unpack("<I", raw[12:])[0]


def id_of(maps: MemoryMaps, ifindex: int, mac: bytes) -> int | None:
    value = maps.get("lb_nexthop_id", struct.pack("<I6s2x", ifindex, mac))
    return None if value is None else struct.unpack("<I", value)[0]


def make() -> tuple[MemoryMaps, NextHopTable]:
    maps = MemoryMaps()
    return maps, NextHopTable(maps, REUSE_S)


def test_each_resolved_neighbour_has_a_record_and_can_be_found_by_its_mac() -> None:
    maps, table = make()
    assert table.update(network(), (), (), 0)
    index = table.index_of(GW)
    assert 0 < index <= CAPACITY
    assert record(maps, index) == (NEIGHBOURS[GW], MAC[ETH0], ETH0)
    assert id_of(maps, ETH0, NEIGHBOURS[GW]) == index
    assert table.index_of(GW6) == index  # the same router by another address
    assert table.index_of((ETH0, ip("10.0.0.77"))) == 0
    assert not table.update(network(), (), (), 1)


def test_another_mac_is_another_index_and_the_old_record_is_retired() -> None:
    maps, table = make()
    table.update(network(), (), (), 0)
    old = table.index_of(PEER)
    assert table.update(network(neighbours={**NEIGHBOURS, PEER: b"\x02\0\0\0\7\7"}), (), (), 1)
    new = table.index_of(PEER)
    assert new not in (0, old)
    assert record(maps, old)[2] == 0
    assert record(maps, new) == (b"\x02\0\0\0\7\7", MAC[ETH0], ETH0)
    assert id_of(maps, ETH0, NEIGHBOURS[PEER]) is None


def test_a_neighbour_that_goes_is_retired() -> None:
    maps, table = make()
    table.update(network(), (), (), 0)
    index = table.index_of(PEER)
    assert table.update(network(neighbours={GW: NEIGHBOURS[GW]}), (), (), 1)
    assert table.index_of(PEER) == 0
    assert record(maps, index)[2] == 0


def test_a_device_that_is_down_has_no_next_hops() -> None:
    _, table = make()
    table.update(network(neighbours={(DOWN, ip("10.71.0.1")): b"\x02\0\0\0\0\x44"}), (), (), 0)
    assert table.used == 0


def test_an_outdated_way_gets_a_new_index_though_the_neighbour_is_the_same() -> None:
    maps, table = make()
    table.update(network(), (), (), 0)
    old = table.index_of(GW)
    table.update(network(), (), {GW}, 1)
    new = table.index_of(GW)
    assert new not in (0, old)
    assert record(maps, old)[2] == 0
    assert record(maps, new)[:2] == (NEIGHBOURS[GW], MAC[ETH0])
    assert id_of(maps, ETH0, NEIGHBOURS[GW]) == new


def test_a_retired_index_rests_until_no_flow_can_hold_it() -> None:
    _, table = make()
    seen = set()
    now = 0.0
    for turn in range(CAPACITY):  # a new MAC each time: every index is used once
        mac = b"\x02\1" + struct.pack(">I", turn)
        table.update(network(neighbours={PEER: mac}), (), (), now)
        seen.add(table.index_of(PEER))
    assert seen == set(range(1, CAPACITY + 1))
    table.update(network(neighbours={PEER: b"\x02\2\0\0\0\0"}), (), (), now + REUSE_S - 1)
    assert table.index_of(PEER) == 0
    assert table.full
    table.update(network(neighbours={PEER: b"\x02\2\0\0\0\1"}), (), (), now + REUSE_S + 1)
    assert table.index_of(PEER) == 1
    assert not table.full


def test_wanted_neighbours_come_first_when_there_is_no_room_for_all() -> None:
    _, table = make()
    crowd = {(ETH0, ip(f"10.0.{i >> 8}.{i & 255}")): b"\x02\3" + struct.pack(">I", i) for i in range(CAPACITY + 500)}
    wanted = list(crowd)[-300:]
    table.update(network(neighbours=crowd), wanted, (), 0)
    assert all(table.index_of(hop) for hop in wanted)
    assert table.full
    assert table.used == CAPACITY


def test_a_restart_keeps_indexes_and_writes_nothing() -> None:
    maps, table = make()
    table.update(network(), (), (), 0)
    table.update(network(neighbours={k: v for k, v in NEIGHBOURS.items() if k != PEER}), (), (), 1)
    indexes = {hop: table.index_of(hop) for hop in NEIGHBOURS}
    with maps.window("lb_nexthop", 0, 4096 * 16) as view:
        before = bytes(view)
    again = NextHopTable(maps, REUSE_S)
    again.restore(5)
    again.update(network(neighbours={k: v for k, v in NEIGHBOURS.items() if k != PEER}), (), (), 5)
    assert {hop: again.index_of(hop) for hop in NEIGHBOURS} == indexes
    with maps.window("lb_nexthop", 0, 4096 * 16) as view:
        assert bytes(view) == before
    again.update(network(), (), (), 6)
    assert again.index_of(PEER) not in {0, *indexes.values()}


def test_a_restart_retires_what_changed_meanwhile() -> None:
    maps, table = make()
    table.update(network(), (), (), 0)
    old = table.index_of(PEER)
    again = NextHopTable(maps, REUSE_S)
    again.restore(0)
    again.update(network(neighbours={**NEIGHBOURS, PEER: b"\x02\0\0\0\7\7"}), (), (), 0)
    assert record(maps, old)[2] == 0


class Killed(Exception):
    pass


class Mortal(MemoryMaps):
    """Dies before the n-th write."""

    def __init__(self, life: int) -> None:
        super().__init__()
        self.life = life

    def tick(self) -> None:
        if self.life == 0:
            raise Killed
        self.life -= 1

    def put_many(self, map_name, items):  # type: ignore[no-untyped-def]
        for item in items:
            self.tick()
            super().put_many(map_name, [item])

    def delete_many(self, map_name, keys):  # type: ignore[no-untyped-def]
        for key in keys:
            self.tick()
            super().delete_many(map_name, [key])

    def store(self, map_name, words):  # type: ignore[no-untyped-def]
        for word in words:
            self.tick()
            super().store(map_name, [word])


def test_killed_at_any_write_the_next_agent_makes_it_whole() -> None:
    changed = network(neighbours={GW: NEIGHBOURS[GW], PEER: b"\x02\0\0\0\7\7"})
    for life in range(40):
        maps = Mortal(life)
        table = NextHopTable(maps, REUSE_S)
        try:
            table.update(network(), (), (), 0)
            table.update(changed, (), (), 1)
        except Killed:
            maps.life = -1
            again = NextHopTable(maps, REUSE_S)
            again.restore(2)
            again.update(changed, (), (), 2)
            for hop, mac in changed.neighbours.items():
                assert record(maps, again.index_of(hop)) == (mac, MAC[ETH0], ETH0)
                assert id_of(maps, ETH0, mac) == again.index_of(hop)
            assert len(maps.items("lb_nexthop_id")) == 2
        else:
            assert life > 10
            break


class Story(MemoryMaps):
    """Checks, at every single store, that a record in use is whole and never changes."""

    def store(self, map_name, words):  # type: ignore[no-untyped-def]
        for word in words:
            before = record(self, word[0] // 16) if map_name == "lb_nexthop" else None
            super().store(map_name, [word])
            if before is None:
                continue
            after = record(self, word[0] // 16)
            if before[2] and after[2]:
                assert before == after, "a record in use changed"
            if after[2]:
                assert any(after[0])
                assert any(after[1])
            if before[2] and not after[2]:
                assert after[:2] == before[:2]


def test_every_store_leaves_records_whole() -> None:
    rng = random.Random(7)
    maps = Story()
    table = NextHopTable(maps, 5)
    hops = [(ETH0, ip(f"10.0.0.{i}")) for i in range(20)] + [(CNI0, ip(f"10.244.0.{i}")) for i in range(20)]
    for now in range(400):
        present = {hop: b"\x02\0\0\0\0" + bytes([rng.randrange(6)]) for hop in hops if rng.random() < 0.7}
        table.update(network(neighbours=present), rng.sample(hops, 5), rng.sample(hops, 2), now)
        for hop, mac in present.items():
            index = table.index_of(hop)
            assert record(maps, index) == (mac, MAC[hop[0]], hop[0])
            assert id_of(maps, hop[0], mac) == index


def test_routes_that_change_make_their_old_next_hops_outdated() -> None:
    old = network()
    moved = network(
        routes=(*(r for r in ROUTES if r.bits), route("0.0.0.0/0", ETH0, "10.0.0.253"), route("::/0", ETH0, "fe80::1"))
    )
    assert outdated_hops(old, moved, ()) == {GW}
    added = network(routes=(*ROUTES, route("192.0.2.0/24", ETH0, "10.0.0.253")))
    assert outdated_hops(old, added, ()) == {GW}  # what went to 192.0.2.0/24 went through the default gateway
    onlink = network(routes=tuple(r for r in ROUTES if r.network != ip("10.0.0.0")))
    assert outdated_hops(old, onlink, ()) == {hop for hop in NEIGHBOURS if len(hop[1]) == 4}
    assert outdated_hops(old, old, ()) == set()


def test_a_new_pod_makes_nothing_outdated() -> None:
    pod = network(routes=(*ROUTES, route("10.10.0.5/32", CNI0)))
    assert outdated_hops(network(), pod, ("cni*",)) == set()
    assert outdated_hops(network(), pod, ()) == {GW}


def devices(maps: MemoryMaps) -> dict[int, tuple[int, bytes]]:
    with maps.window("lb_device", 0, 1024 * 16) as view:
        raw = bytes(view)
    found = {}
    for at in range(0, len(raw), 16):
        ifindex, mac, flags = struct.unpack_from("<I6sH", raw, at)
        if ifindex:
            assert at // 16 in [(ifindex + probe) & 1023 for probe in range(4)]
            found[ifindex] = (flags, mac)
    return found


def link(index: int, name: str = "d") -> Link:
    return Link(index, f"{name}{index}", b"\x02\0\0\0" + struct.pack(">H", index), 1500, True)


def test_devices_come_change_and_go() -> None:
    maps = MemoryMaps()
    assert write_devices(maps, {2: (link(2), False), 1026: (link(1026), True), 7: (link(7), True)}) == []
    assert devices(maps) == {2: (0, link(2).mac), 1026: (1, link(1026).mac), 7: (1, link(7).mac)}
    write_devices(maps, {1026: (link(1026), False), 2050: (link(2050), True)})
    assert devices(maps) == {1026: (0, link(1026).mac), 2050: (1, link(2050).mac)}


def test_devices_by_which_xdp_sends_are_marked_as_long_as_there_is_room() -> None:
    maps = MemoryMaps()
    senders = {7: link(7), 9: link(9)}
    write_devices(maps, {2: (link(2), False), 7: (link(7), True)}, senders)
    assert devices(maps) == {2: (0, link(2).mac), 7: (1 | 2, link(7).mac), 9: (2, link(9).mac)}
    write_devices(maps, {2: (link(2), False), 7: (link(7), True)}, {})
    assert devices(maps) == {2: (0, link(2).mac), 7: (1, link(7).mac)}
    wanted = {2 + 1024 * i: (link(2 + 1024 * i), False) for i in range(4)}
    assert write_devices(maps, wanted, {4098: link(4098)}) == []  # no complaint: its frames go by tc


def test_devices_over_others_are_marked() -> None:
    """A VLAN over its device, a bond over its ports, through devices without programs too; a veth's other end is not under it."""
    eth, port, bond, vlan, veth = link(2), replace(link(3), master=4), link(4), link(5), link(6)
    links = {each.index: each for each in (eth, port, bond)}
    links |= {5: replace(vlan, kind="vlan", parent=4), 6: replace(veth, kind="veth", parent=2)}
    assert stacked_devices(links, {2, 6}) == set()
    assert stacked_devices(links, {3, 4}) == {4}
    assert stacked_devices(links, {3, 5}) == {5}
    assert stacked_devices(links, {4, 5}) == {5}
    assert stacked_devices(links, {2, 5}) == set()
    maps = MemoryMaps()
    write_devices(maps, {3: (links[3], False), 5: (links[5], False)}, stacked=stacked_devices(links, {3, 5}))
    assert devices(maps) == {3: (0, link(3).mac), 5: (4, link(5).mac)}


def test_the_next_hop_of_a_device_that_takes_no_frames_from_xdp_is_marked() -> None:
    maps, table = make()
    table.update(network(), (), (), 0)
    before = table.index_of(GW)
    table.no_xdp = {ETH0}
    assert table.update(network(), (), (), 1)
    index = table.index_of(GW)
    assert index not in (0, before)  # a record never changes while it may be in use
    assert record(maps, index) == (NEIGHBOURS[GW], MAC[ETH0], ETH0 | 1 << 31)
    assert record(maps, before)[2] == 0
    assert id_of(maps, ETH0, NEIGHBOURS[GW]) == index  # programs ask by the plain number
    again = NextHopTable(maps, REUSE_S)
    again.restore(2)
    again.update(network(), (), (), 2)  # before it is known what runs where, the marks stay
    assert again.index_of(GW) == index
    again.no_xdp = ()
    again.update(network(), (), (), 3)
    assert record(maps, index)[2] == 0
    assert record(maps, again.index_of(GW))[2] == ETH0


def test_a_device_without_room_is_named() -> None:
    wanted = {2 + 1024 * i: (link(2 + 1024 * i), False) for i in range(5)}
    assert write_devices(MemoryMaps(), wanted) == ["d4098"]
