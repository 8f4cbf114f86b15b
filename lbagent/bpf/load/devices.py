"""The network devices of this namespace, for attaching. Blocks on netlink: from asyncio, call it in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any

from msgspec import Struct

from lbagent.errors import NotFound
from lbagent.iproute import IPRoute

_IFF_LOOPBACK = 8
STRICT = 1  # of rp_filter
_MAIN, _UNICAST = 254, 1  # RT_TABLE_MAIN, RTN_UNICAST
MAX_NATIVE_XDP_MTU = 3498  # bytes, of most drivers: one page less headroom and the kernel's tail


class Device(Struct, frozen=True):
    """The kernel's description of a device. `kind` is '' for a NIC, else veth, bridge, vlan, ..."""

    name: str
    ifindex: int
    kind: str
    loopback: bool
    mtu: int
    xdp_prog_id: int
    xdp_mode: str  # '', 'xdp' (native), 'xdpgeneric', 'xdpoffload', 'xdpmulti'

    @property
    def virtual(self) -> bool:
        """Whether XDP there would cost the stack its offloads (veth, bridge, vlan, ...)."""
        return bool(self.kind) or self.loopback


def devices() -> dict[str, Device]:
    """Return every device of this network namespace by name."""
    with IPRoute() as netlink:
        return list_devices(netlink)


def default_route_devices() -> set[str]:
    """Return the names of the devices of all default routes of the main table, IPv4 and IPv6."""
    with IPRoute() as netlink:
        names = {device.ifindex: device.name for device in list_devices(netlink).values()}
        found = set()
        for family in (AF_INET, AF_INET6):
            for message in netlink.get_routes(family=family):
                table = message.get_attr("RTA_TABLE") or message["table"]
                if not message["dst_len"] and message["type"] == _UNICAST and table == _MAIN:
                    hops = message.get_attr("RTA_MULTIPATH") or ()
                    found.update([message.get_attr("RTA_OIF"), *(hop["oif"] for hop in hops)])
        return {names[index] for index in found if index in names}


def no_such_device(name: str, present: Iterable[str]) -> NotFound:
    """Return the error about a missing `--device`; `present` are the names of the existing devices."""
    there = ", ".join(sorted(present)) or "none"
    return NotFound(f"device {name} does not exist in this network namespace; nothing was attached; there are: {there}")


def list_devices(netlink: IPRoute) -> dict[str, Device]:
    """Return every device by name, over an open netlink socket."""
    return {device.name: device for device in map(_device, netlink.get_links())}


def strict_devices(names: Iterable[str]) -> list[str]:
    """Return the devices with a strict reverse path filter (rp_filter 1; of "all" and the device's own value the larger counts)."""
    of_all = _reverse_path_filter("all")
    return [name for name in names if max(of_all, _reverse_path_filter(name)) == STRICT]


def _reverse_path_filter(name: str) -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/conf", name, "rp_filter").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _device(message: Any) -> Device:
    info, xdp = message.get_attr("IFLA_LINKINFO"), message.get_attr("IFLA_XDP")
    return Device(
        name=message.get_attr("IFLA_IFNAME"),
        ifindex=message["index"],
        kind=(info and info.get_attr("IFLA_INFO_KIND")) or "",
        loopback=bool(message["flags"] & _IFF_LOOPBACK),
        mtu=message.get_attr("IFLA_MTU") or 0,
        xdp_prog_id=(xdp and xdp.get_attr("IFLA_XDP_PROG_ID")) or 0,
        xdp_mode=(xdp and xdp.get_attr("IFLA_XDP_ATTACHED")) or "",
    )
