"""The form of the pools file: one record per mapping, with defaults. read_pools.py checks the values."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

Words = list[str]
Selector = dict[str, Any]
Duration = str | int  # `300ms`, or seconds


class PoolEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    """An entry of `pools`."""

    name: str
    addresses: Words
    announce: Words = field(default_factory=lambda: ["l2"])
    priority: int = 0
    auto_assign: bool = True
    avoid_buggy_ips: bool = field(default=True, name="avoidBuggyIPs")
    namespaces: Words = field(default_factory=list)
    service_selector: Selector = field(default_factory=dict)


class L2Entry(Struct, forbid_unknown_fields=True, rename="camel"):
    """The mapping `l2`."""

    lease_duration: Duration = "2s"
    restart_grace: Duration = "30s"
    devices: Words = field(default_factory=list)
    probe: bool = True
    conflict: str = "defend"
    node_selector: Selector = field(default_factory=dict)


class BfdEntry(Struct, forbid_unknown_fields=True):
    """The mapping `bfd` of a peer."""

    interval: Duration = "300ms"
    multiplier: int = 3


class PeerEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    """An entry of `bgp.peers`."""

    address: str
    asn: int
    port: int = 179
    bfd: BfdEntry | None = None
    password_file: str = ""
    hold_time: Duration = "90s"
    multihop: int = 1
    node_selector: Selector = field(default_factory=dict)


class BgpEntry(Struct, forbid_unknown_fields=True, rename="camel"):
    """The mapping `bgp`."""

    local_asn: int = field(name="localASN")
    port: int = 179
    graceful_restart: bool = True
    communities: Words = field(default_factory=list)
    peers: list[PeerEntry] = field(default_factory=list)


class FileEntry(Struct, forbid_unknown_fields=True):
    """The whole file."""

    pools: list[PoolEntry] = field(default_factory=list)
    l2: L2Entry = field(default_factory=L2Entry)
    bgp: BgpEntry | None = None
