"""Entries of lb_vip: written at once, their expiry extended, taken over from an earlier agent."""

from __future__ import annotations

from lbagent.announce.leader.lease_election import vip_lease
from lbagent.maps.layout import LB_VIP, LB_VIP_KEY
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import parse_ip
from lbagent.targets.bpf.vip_map import FORMER_LEADER_MAP, MAP, NS, VipMap, read

V4, V6 = parse_ip("10.0.0.9"), parse_ip("fd00::9")
MAC, OTHER = b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"
NO_DEVICE = 999_999  # filters of devices do not matter here


def untils(maps: MemoryMaps) -> dict[bytes, float]:
    return {LB_VIP_KEY.unpack(key)[1]: LB_VIP.unpack(value)[0] / NS for key, value in maps.items(MAP)}  # type: ignore[misc,operator]


def test_entries_come_and_go_at_once() -> None:
    maps = MemoryMaps()
    written = VipMap(maps, 30.0)
    written.write({(NO_DEVICE, V4): MAC, (NO_DEVICE, V6): MAC}, 100.0)
    assert untils(maps) == {bytes(10) + b"\xff\xff" + V4: 130.0, V6: 130.0}
    written.write({(NO_DEVICE, V6): OTHER}, 100.1)
    assert read(maps) == {(NO_DEVICE, V6): OTHER}


def test_the_end_is_moved_on_when_it_is_time_and_not_before() -> None:
    maps = MemoryMaps()
    written = VipMap(maps, 30.0)
    wanted = {(NO_DEVICE, V6): MAC}
    written.write(wanted, 100.0)
    written.write(wanted, 102.9)
    assert untils(maps) == {V6: 130.0}
    assert written.refresh_at() == 103.0
    written.write(wanted, 103.0)
    assert untils(maps) == {V6: 133.0}


def test_an_address_that_comes_later_does_not_put_the_others_off() -> None:
    maps = MemoryMaps()
    written = VipMap(maps, 30.0)
    written.write({(NO_DEVICE, V6): MAC}, 100.0)
    written.write({(NO_DEVICE, V6): MAC, (NO_DEVICE, V4): MAC}, 102.0)
    assert written.refresh_at() == 103.0


def test_the_next_agent_takes_over_what_is_there() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(NO_DEVICE, V4): MAC}, 100.0)
    later = VipMap(maps, 30.0)
    assert later.places == {(NO_DEVICE, V4): MAC}
    later.write(dict(later.places), 110.0)
    assert set(untils(maps).values()) == {140.0}


def test_entries_end_by_themselves_when_nothing_is_written_for_so_long() -> None:
    written = VipMap(MemoryMaps(), 30.0)
    assert not written.has_ended(1000.0)
    written.write({(NO_DEVICE, V4): MAC}, 100.0)
    written.write({(NO_DEVICE, V4): MAC, (NO_DEVICE, V6): MAC}, 102.0)  # the first one ends first
    assert [written.has_ended(now) for now in (129.9, 130.0)] == [False, True]
    written.restart_grace_s = 8.0  # another file: written entries keep their expiry
    assert not written.has_ended(129.9)
    written.write({}, 131.0)
    assert not written.has_ended(1000.0)


def test_the_name_of_a_lease() -> None:
    assert vip_lease(V4) == "lbagent-vip-10.0.0.9"
    assert vip_lease(V6) == "lbagent-vip-fd00-0000-0000-0000-0000-0000-0000-0009"


def test_former_leaders_are_entries_of_a_map_of_their_own() -> None:
    maps = MemoryMaps()
    VipMap(maps, 30.0).write({(NO_DEVICE, V4): MAC}, 100.0)
    VipMap(maps, 30.0, FORMER_LEADER_MAP).write({(NO_DEVICE, V6): OTHER}, 100.0)
    assert read(maps) == {(NO_DEVICE, V4): MAC}
    assert read(maps, name=FORMER_LEADER_MAP) == {(NO_DEVICE, V6): OTHER}
    assert VipMap(maps, 30.0, FORMER_LEADER_MAP).places == {(NO_DEVICE, V6): OTHER}
