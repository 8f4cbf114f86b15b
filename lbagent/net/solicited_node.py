"""The solicited-node multicast group of an IPv6 address (RFC 4291 §2.7.1), and its Ethernet address (RFC 2464 §7). Pure."""

from __future__ import annotations

SOLICITED_NODE = bytes.fromhex("ff02") + bytes(9) + b"\1\xff"  # and the last three bytes of the address


def group_mac(address: bytes) -> bytes:
    """Return the MAC address of an IPv6 group."""
    return b"\x33\x33" + address[12:]


def solicited_node(address: bytes) -> bytes:
    """Return the solicited-node group of an IPv6 address."""
    return SOLICITED_NODE + address[13:]
