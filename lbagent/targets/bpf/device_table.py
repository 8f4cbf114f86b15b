"""lb_device: properties of devices for the programs (pods behind it, XDP can send by it, MAC address, MTU)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from lbagent.maps.layout import DEVICE_PROBES, DEVICES, LB_DEVICE, DeviceFlag, device_position
from lbagent.maps.lbmaps import LBMaps
from lbagent.net.snapshot import Link

MAP = "lb_device"
MAX_MTU = 0xFFFF  # loopback has one more: no datagram is longer
HALF = 8  # a record is two words; the first one holds ifindex


def stacked_devices(links: Mapping[int, Link], attached: Collection[int]) -> frozenset[int]:
    """Return those devices with programs (by ifindex) that are, at any depth, on top of another one: a frame passes both.

    A VLAN is on top of its device, a bond or bridge on top of its ports.
    """
    over: dict[int, set[int]] = {}
    for link in links.values():
        over.setdefault(link.index, set()).update({link.master} - {0})
        if link.kind == "vlan":
            over.setdefault(link.parent, set()).add(link.index)
    reached: set[int] = set()
    waiting = [above for index in attached for above in over.get(index, ())]
    while waiting:
        index = waiting.pop()
        if index not in reached:
            reached.add(index)
            waiting += over.get(index, ())
    return frozenset(reached.intersection(attached))


def write_devices(
    maps: LBMaps,
    wanted: Mapping[int, tuple[Link, bool]],
    senders: Mapping[int, Link] = MappingProxyType({}),
    stacked: Collection[int] = (),
) -> list[str]:
    """Make lb_device hold exactly these devices (by ifindex; True = a pod device); return the names that found no slot.

    `senders`: devices by which XDP can send, wanted or not; further ones get a slot while there are free ones: without one, their
    frames go by tc. `stacked`: DeviceFlag.STACKED, by ifindex. A record is stored last word first, so that a program never reads
    a device with another one's address.
    """
    devices = dict(wanted) | {index: (link, False) for index, link in senders.items() if index not in wanted}
    with maps.window(MAP, 0, DEVICES * LB_DEVICE.size) as view:
        present = bytes(view)
    places = {}
    words: list[tuple[int, bytes]] = []
    for position in range(DEVICES):
        record = present[position * LB_DEVICE.size : (position + 1) * LB_DEVICE.size]
        ifindex = LB_DEVICE.unpack(record)[0]
        if ifindex in devices and ifindex not in places:
            places[ifindex] = position
        elif ifindex:
            words.append((position * LB_DEVICE.size, bytes(HALF)))
    left_out = []
    for ifindex, (link, pod) in devices.items():
        taken = set(places.values())
        probes = [device_position(ifindex, probe) for probe in range(DEVICE_PROBES)]
        position = places.get(ifindex, next((p for p in probes if p not in taken), -1))
        if position < 0:
            left_out += [link.name] if ifindex in wanted else []
            continue
        places[ifindex] = position
        flags = (DeviceFlag.POD if pod else 0) | (DeviceFlag.XDP_SEND if ifindex in senders else 0)
        flags |= DeviceFlag.STACKED if ifindex in stacked else 0
        record = LB_DEVICE.pack(ifindex, link.mac or bytes(6), flags, min(link.mtu, MAX_MTU), b"")
        at = position * LB_DEVICE.size
        if record != present[at : at + LB_DEVICE.size]:
            words += [(at + HALF, record[HALF:]), (at, record[:HALF])]
    maps.store(MAP, words)
    return left_out
