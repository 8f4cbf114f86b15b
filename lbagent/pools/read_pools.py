"""Read the pools file: YAML to checked records, or one message `FILE:LINE: FIELD: what is wrong`."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from lbagent.model.address import format_ip, parse_ip
from lbagent.pools.address_range import AddressRange, parse_range
from lbagent.pools.announcement import BGP, DEFEND, L2, YIELD, Bfd, BgpPeer, BgpSettings, L2Settings
from lbagent.pools.field_checks import FieldChecks, only_document
from lbagent.pools.file_shape import BfdEntry, BgpEntry, FileEntry, L2Entry, PeerEntry, PoolEntry
from lbagent.pools.pool import AddressPool
from lbagent.textfile.field_path import FieldPath
from lbagent.textfile.followed_file import read_text_of
from lbagent.value_errors import shown

MAX_ASN = 0xFFFFFFFF  # RFC 6793
MAX_HOLD_S = 0xFFFF  # RFC 4271 4.2
_SHAPES = (FileEntry, PoolEntry, L2Entry, BgpEntry, BfdEntry, PeerEntry)
_KEYS = {each.encode_name for shape in _SHAPES for each in msgspec.structs.fields(shape)}


class PoolsFile(Struct, frozen=True):
    """A checked pools file; pools in order of preference."""

    pools: tuple[AddressPool, ...] = ()
    l2: L2Settings = L2Settings()
    bgp: BgpSettings | None = None

    def pool_of(self, address: bytes) -> AddressPool | None:
        """Return the pool of an address; there is at most one."""
        return next((pool for pool in self.pools if pool.holds(address)), None)


def read_pools(path: str) -> PoolsFile:
    """Read a pools file. Raises ConfigError with file, line and field."""
    return parse_pools(read_text_of(path) or "", path)


def parse_pools(text: str, path: str) -> PoolsFile:
    """Read the text of a pools file; `path` is its name in messages. Raises ConfigError."""
    return _Reader(text, path).file(only_document(text, path))


class _Reader(FieldChecks):
    """Reads the sections of one file."""

    def file(self, document: Any) -> PoolsFile:
        """Return the checked file."""
        entry = self.converted(document, FileEntry, _KEYS)
        pools = [self.pool(each, ("pools", index), entry.bgp) for index, each in enumerate(entry.pools)]
        self.unique([pool.name for pool in pools], lambda index: ("pools", index, "name"))
        self.disjoint(pools)
        ordered = sorted(pools, key=lambda pool: pool.order)
        return PoolsFile(tuple(ordered), self.l2(entry.l2), self.bgp(entry.bgp) if entry.bgp else None)

    def pool(self, entry: PoolEntry, at: FieldPath, bgp: BgpEntry | None) -> AddressPool:
        """Return a checked pool."""
        if not entry.name or not entry.name.isprintable() or "," in entry.name:
            self.refuse((*at, "name"), f"{shown(entry.name)} is not a name")
        if not entry.addresses:
            self.refuse((*at, "addresses"), "a pool has at least one range")
        for index, word in enumerate(entry.announce):
            if word not in (L2, BGP):
                self.refuse((*at, "announce", index), f"unknown value {shown(word)}; one of l2, bgp is possible")
            if word == BGP and bgp is None:
                self.refuse((*at, "announce", index), "the section bgp with localASN and peers is missing")
        return AddressPool(
            entry.name,
            tuple(self.ranges(entry.addresses, (*at, "addresses"))),
            frozenset(entry.announce),
            entry.priority,
            entry.auto_assign,
            entry.avoid_buggy_ips,
            frozenset(entry.namespaces),
            self.selector(entry.service_selector, (*at, "serviceSelector")),
        )

    def ranges(self, texts: Iterable[str], at: FieldPath) -> list[AddressRange]:
        """Return checked ranges, lowest first."""
        found: list[AddressRange] = []
        for index, text in enumerate(texts):
            each = self.value(parse_range, text, (*at, index))
            for other in found:
                if each.overlaps(other):
                    self.refuse((*at, index), f"{text!r} overlaps {other} of the same pool")
            found.append(each)
        return sorted(found, key=lambda each: (each.family, each.first))

    def disjoint(self, pools: list[AddressPool]) -> None:
        """Reject pools that share an address."""
        ends = sorted(
            (each.family, each.first, each.last, index) for index, pool in enumerate(pools) for each in pool.ranges
        )
        for (family, first, last, one), (other_family, begins, ends_at, two) in pairwise(ends):
            if family is other_family and begins <= last:
                later = max(one, two)
                ranges = AddressRange(family, first, last), AddressRange(family, begins, ends_at)
                mine, theirs = ranges if later == one else ranges[::-1]
                other = pools[min(one, two)].name
                self.refuse(("pools", later, "addresses"), f"{mine} overlaps {theirs} of pool {other}")

    def l2(self, entry: L2Entry) -> L2Settings:
        """Return the checked section."""
        return L2Settings(
            self.seconds(entry.lease_duration, ("l2", "leaseDuration"), 1, 3600),
            self.seconds(entry.restart_grace, ("l2", "restartGrace"), 1, 3600),
            tuple(entry.devices),
            entry.probe,
            self.selector(entry.node_selector, ("l2", "nodeSelector")),
            self.conflict(entry.conflict) == DEFEND,
        )

    def conflict(self, value: str) -> str:
        """Return the checked value: the reaction to another host that claims an announced address."""
        if value not in (DEFEND, YIELD):
            self.refuse(("l2", "conflict"), f"unknown value {shown(value)}; one of {DEFEND}, {YIELD} is possible")
        return value

    def bgp(self, entry: BgpEntry) -> BgpSettings:
        """Return the checked section."""
        peers = [self.peer(each, ("bgp", "peers", index)) for index, each in enumerate(entry.peers)]
        self.unique([format_ip(each.address) for each in peers], lambda index: ("bgp", "peers", index, "address"))
        return BgpSettings(
            self.between(entry.local_asn, ("bgp", "localASN"), 1, MAX_ASN),
            self.between(entry.port, ("bgp", "port"), 1, 65535),
            entry.graceful_restart,
            tuple(self.community(text, ("bgp", "communities", at)) for at, text in enumerate(entry.communities)),
            tuple(peers),
        )

    def peer(self, entry: PeerEntry, at: FieldPath) -> BgpPeer:
        """Return a checked peer."""
        hold_s = self.seconds(entry.hold_time, (*at, "holdTime"), 0, MAX_HOLD_S)
        if 0 < hold_s < 3:
            self.refuse((*at, "holdTime"), f"{entry.hold_time!r} is neither 0s nor at least 3s (RFC 4271)")
        bfd = None
        if entry.bfd:
            interval_s = self.seconds(entry.bfd.interval, (*at, "bfd", "interval"), 0.01, 60)
            bfd = Bfd(interval_s, self.between(entry.bfd.multiplier, (*at, "bfd", "multiplier"), 1, 255))
        return BgpPeer(
            self.value(parse_host, entry.address, (*at, "address")),
            self.between(entry.asn, (*at, "asn"), 1, MAX_ASN),
            self.between(entry.port, (*at, "port"), 1, 65535),
            bfd,
            entry.password_file,
            hold_s,
            self.between(entry.multihop, (*at, "multihop"), 1, 255),
            self.selector(entry.node_selector, (*at, "nodeSelector")),
        )

    def community(self, text: str, at: FieldPath) -> tuple[int, ...]:
        """Return the numbers of `65000:1` or `65000:1:2`."""
        parts = text.split(":")
        limit = 0xFFFF if len(parts) == 2 else MAX_ASN
        if len(parts) not in (2, 3) or not all(each.isascii() and each.isdigit() and len(each) < 11 for each in parts):
            self.refuse(at, f"{text!r} is not a community like 64512:100 or 64512:1:2")
        numbers = tuple(map(int, parts))
        if max(numbers) > limit:
            self.refuse(at, f"{text!r} has a number over {limit}")
        return numbers


def parse_host(text: str) -> bytes:
    """Return the packed address of a host to which a connection can be opened. Raises ValueError."""
    packed = parse_ip(text)
    found = ip_address(packed)
    if found.is_unspecified or found.is_multicast or found.is_loopback or packed == b"\xff" * 4:
        raise ValueError(f"{text!r} is not an address of a router")
    if found.is_link_local and found.version == 6:
        raise ValueError(f"{text!r} is a link-local address, which needs a device; give the router another address")
    return packed
