"""IPv4-mapped IPv6 addresses: an IPv4 address in a field of 16 bytes. Source: RFC 4291, 2.5.5.2."""

from __future__ import annotations

PREFIX = bytes(10) + b"\xff\xff"  # ::ffff:0:0/96


def mapped(address: bytes) -> bytes:
    """Return 16 bytes for a packed address of either family."""
    return address if len(address) == 16 else PREFIX + address


def unmapped(address: bytes) -> bytes:
    """Return the IPv4 address of one that is mapped, any other address as it is."""
    return address.removeprefix(PREFIX)
