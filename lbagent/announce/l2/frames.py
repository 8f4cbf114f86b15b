"""Frames about an address: probes and announcements as bytes, and the address that a received frame claims. Pure.

Source: RFC 826 (ARP), RFC 5227 (probes, announcements), RFC 4861 and RFC 4862 (neighbor solicitation and advertisement, DAD).
Addresses are packed, in network byte order, as everywhere.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lbagent.net.solicited_node import group_mac, solicited_node

BROADCAST = b"\xff" * 6
ETH_ARP, ETH_IP6 = 0x0806, 0x86DD
REQUEST, REPLY = 1, 2
_ARP = struct.Struct("!6s6sHHHBBH6s4s6s4s")
_ARP_HEAD = (1, 0x0800, 6, 4)  # Ethernet, IPv4, bytes of their addresses
_IP6 = struct.Struct("!6s6sHIHBB16s16s")
ICMP6, HOPS = 58, 255  # a router lowers the hop limit: 255 proves that the frame is from this link
SOLICITATION, ADVERTISEMENT = 135, 136
OVERRIDE = 0x20000000
TARGET_MAC = 2  # option
ALL_NODES = bytes.fromhex("ff02") + bytes(13) + b"\1"
LEAST_ADVERTISEMENT = 24 + 8  # bytes: the message with its target, and one option


class AddressSighting(NamedTuple):
    """A frame in which a host claims an address."""

    address: bytes
    mac: bytes


def is_of_a_host(mac: bytes) -> bool:
    """Return whether a MAC address can belong to one network card: it is neither zero nor a group address, such as broadcast."""
    return any(mac) and not mac[0] & 1


def probe(address: bytes, mac: bytes) -> bytes:
    """Return the frame that probes an address, with an unspecified sender address."""
    if len(address) == 4:
        return _ARP.pack(BROADCAST, mac, ETH_ARP, *_ARP_HEAD, REQUEST, mac, bytes(4), bytes(6), address)
    group = solicited_node(address)
    return _icmp6(group_mac(group), mac, bytes(16), group, struct.pack("!BBHI", SOLICITATION, 0, 0, 0) + address)


def announcements(address: bytes, mac: bytes) -> list[bytes]:
    """Return the frames that announce an address: gratuitous ARP as request and as reply, or an advertisement to all."""
    if len(address) == 4:
        request = _ARP.pack(BROADCAST, mac, ETH_ARP, *_ARP_HEAD, REQUEST, mac, address, bytes(6), address)
        reply = _ARP.pack(BROADCAST, mac, ETH_ARP, *_ARP_HEAD, REPLY, mac, address, BROADCAST, address)
        return [request, reply]
    body = struct.pack("!BBHI", ADVERTISEMENT, 0, 0, OVERRIDE) + address + struct.pack("!BB", TARGET_MAC, 1) + mac
    return [_icmp6(group_mac(ALL_NODES), mac, address, ALL_NODES, body)]


def _icmp6(to_mac: bytes, mac: bytes, source: bytes, to: bytes, body: bytes) -> bytes:
    pseudo = source + to + struct.pack("!II", len(body), ICMP6) + body
    total = sum(struct.unpack(f"!{len(pseudo) // 2}H", pseudo))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    body = body[:2] + struct.pack("!H", ~total & 0xFFFF) + body[4:]
    return _IP6.pack(to_mac, mac, ETH_IP6, 0x60000000, len(body), ICMP6, HOPS, source, to) + body


def parse_arp(frame: bytes) -> AddressSighting | None:
    """Return the address that the sender of an ARP frame claims: in a reply, or in a request for its own address. Else None."""
    if len(frame) < _ARP.size:
        return None
    *_, ethertype, kind, network, size, width, operation, mac, sender, _, target = _ARP.unpack_from(frame)
    if (ethertype, kind, network, size, width) != (ETH_ARP, *_ARP_HEAD) or not any(sender):
        return None
    if operation == REPLY or (operation == REQUEST and sender == target):
        return AddressSighting(sender, mac)
    return None


def parse_advertisement(body: bytes) -> AddressSighting | None:
    """Return the claim of an ICMPv6 message; None for all but an advertisement with a MAC address (RFC 4861 §7.1.2)."""
    if len(body) < LEAST_ADVERTISEMENT or body[0] != ADVERTISEMENT or body[1]:
        return None
    options = body[24:]
    while len(options) >= 8 and options[1]:
        size = 8 * options[1]
        if options[0] == TARGET_MAC and options[1] == 1:
            return AddressSighting(body[8:24], options[2:8])
        options = options[size:]
    return None
