"""lb_vip: the addresses for which the programs answer, by device, with an expiry time; lb_former_leader: the previous leaders.

The agent extends that time. An agent that dies leaves entries that last for `restart_grace_s`: the next agent takes them over, or
they expire. Expired entries are not taken over: another node may answer for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import socket
import struct
from collections.abc import Collection, Mapping

from lbagent.mapped_address import mapped, unmapped
from lbagent.maps.layout import LB_VIP, LB_VIP_KEY
from lbagent.maps.lbmaps import LBMaps
from lbagent.net.solicited_node import group_mac, solicited_node
from lbagent.targets.data_plane import AddressResponder, DeviceAddress

log = logging.getLogger(__name__)
MAP, FORMER_LEADER_MAP = "lb_vip", "lb_former_leader"
REFRESH_PARTS, MAX_REFRESH_INTERVAL_S = 10, 3.0  # the expiry is extended at least after this part of it
SIOCADDMULTI, SIOCDELMULTI = 0x8931, 0x8932
NS = 1_000_000_000


class VipMap:
    """Owner of the entries of lb_vip, or of lb_former_leader: the AddressEntries of targets/data_plane.py."""

    def __init__(self, maps: LBMaps, restart_grace_s: float, name: str = MAP) -> None:
        self._maps, self._name = maps, name
        self.restart_grace_s = restart_grace_s
        self._written: dict[DeviceAddress, bytes] = read(maps, name=name)
        self._lasting: Mapping[DeviceAddress, bytes] = dict(self._written)
        self._wanted: Mapping[DeviceAddress, bytes] | None = None  # the entries written last
        self._refreshed, self._ends_at = float("-inf"), float("inf")

    @property
    def places(self) -> Mapping[DeviceAddress, bytes]:
        """The entries of an earlier agent that have not expired: a MAC address by device and address."""
        return self._lasting

    def drop_ended(self, now: float) -> None:
        """Drop inherited entries that have expired; `now` is of CLOCK_MONOTONIC."""
        self._lasting = read(self._maps, now, self._name)

    def refresh_at(self) -> float:
        """Return when `write` must be called again without a change; monotonic seconds."""
        return (
            self._refreshed + min(self.restart_grace_s / REFRESH_PARTS, MAX_REFRESH_INTERVAL_S)
            if self._written
            else float("inf")
        )

    def has_ended(self, now: float) -> bool:
        """Return whether the entries expired because `write` was not called; `now` is of CLOCK_MONOTONIC."""
        return bool(self._written) and now >= self._ends_at

    def write(self, wanted: Mapping[DeviceAddress, bytes], now: float) -> None:
        """Replace the entries by these; `now` is of CLOCK_MONOTONIC. New ones are written at once. Raises KernelError, MapFull.

        The same object as before counts as unchanged.
        """
        if wanted is self._wanted and now < self.refresh_at():
            return
        gone = [place for place in self._written if place not in wanted]
        due = now >= self.refresh_at()
        fresh = {place: mac for place, mac in wanted.items() if due or self._written.get(place) != mac}
        if gone:
            self._maps.delete_many(self._name, [_key(place) for place in gone])
            for place in gone:
                del self._written[place]
            self._listen(gone, leave=True)
        if fresh:
            until = int((now + self.restart_grace_s) * NS)
            self._listen(fresh.keys() - self._written.keys())
            self._maps.put_many(
                self._name, [(_key(place), LB_VIP.pack(until, mac, b"")) for place, mac in fresh.items()]
            )
            self._written |= fresh
        if due or len(fresh) == len(self._written):
            self._refreshed, self._ends_at = now, now + self.restart_grace_s
        self._wanted = wanted

    def _listen(self, places: Collection[DeviceAddress], *, leave: bool = False) -> None:
        for place in places if self._name == MAP else ():
            _listen(place, leave=leave)


def responder(maps: LBMaps, restart_grace_s: float) -> AddressResponder:
    """Return the entries of both maps."""
    return AddressResponder(VipMap(maps, restart_grace_s), VipMap(maps, restart_grace_s, FORMER_LEADER_MAP))


def read(maps: LBMaps, now: float = 0.0, name: str = MAP) -> dict[DeviceAddress, bytes]:
    """Return the entries in the map, without those that expired before `now`."""
    out: dict[DeviceAddress, bytes] = {}
    if name in maps.specs:  # pins of an earlier version lack it
        for key, value in maps.items(name):
            ifindex, address = LB_VIP_KEY.unpack(key)
            until, mac, _ = LB_VIP.unpack(value)
            assert isinstance(until, int)
            assert isinstance(ifindex, int)
            assert isinstance(address, bytes)
            assert isinstance(mac, bytes)
            if until >= now * NS:
                out[ifindex, unmapped(address)] = mac
    return out


def release(places: Mapping[DeviceAddress, bytes]) -> None:
    """Remove the multicast filters of these addresses from their devices (for `cleanup`)."""
    for place in places:
        _listen(place, leave=True)


def _key(place: DeviceAddress) -> bytes:
    ifindex, address = place
    return LB_VIP_KEY.pack(ifindex, mapped(address))


def _listen(place: DeviceAddress, *, leave: bool = False) -> None:
    """Make the device accept the solicited-node group of an IPv6 address: its filter may drop other groups.

    It lasts until it is removed, also without the agent. Source: netdevice(7); net/core/dev_ioctl.c (behaviour).
    """
    ifindex, address = place
    if len(address) != 16:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        name = socket.if_indextoname(ifindex).encode()
        request = struct.pack("16sH14s8x", name, 0, group_mac(solicited_node(address)))
        fcntl.ioctl(sock, SIOCDELMULTI if leave else SIOCADDMULTI, request)
