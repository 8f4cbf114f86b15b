"""A frame of an event without the addresses of clients. Pure, except for the numbers that replacements get.

What else may tell a client's address is removed: IPv4 options and the content of IPv6 extension headers (routes, home addresses),
TCP options that can hold an address (MPTCP, TOA), and the checksums, which are sums over addresses: that of the IPv4 header is made
again, the others are zero.
"""

from __future__ import annotations

from lbagent.targets.bpf.packet_frame import internet_checksum
from lbagent.targets.client_addresses import ClientAddresses

_VLAN_TYPES = (0x8100, 0x88A8)
_IPV4, _IPV6 = 0x0800, 0x86DD
_EXTENSIONS = (0, 43, 60)  # hop-by-hop options, routing, destination options: a type, a length, then content
_FRAGMENT = 44
_CHECKSUM_AT = {1: 2, 6: 16, 17: 6, 58: 2}  # of the L4 header; SCTP's is not over addresses
_TCP, _TCP_HEAD = 6, 20
_TCP_END, _TCP_NOP = 0, 1
_TCP_KEPT = (2, 3, 4, 5, 8)  # MSS, window scale, SACK permitted, SACK, timestamps


def redacted_frame(frame: bytes, clients: ClientAddresses) -> bytes:
    """Return the frame with replacements for the addresses of clients."""
    out = bytearray(frame)
    at = 12
    kind = int.from_bytes(out[at : at + 2], "big")
    while kind in _VLAN_TYPES:
        at += 4
        kind = int.from_bytes(out[at : at + 2], "big")
    at += 2
    if kind == _IPV4 and len(out) >= at + 20:
        _redact_ipv4(out, at, clients)
    elif kind == _IPV6 and len(out) >= at + 40:
        _redact_ipv6(out, at, clients)
    return bytes(out)


def _redact_ipv4(out: bytearray, at: int, clients: ClientAddresses) -> None:
    _replace(out, at + 12, 4, clients)
    l4 = min(at + (out[at] & 15) * 4, len(out))
    out[at + 20 : l4] = bytes((1,)) * max(0, l4 - at - 20)  # no operation
    out[at + 10 : at + 12] = bytes(2)
    out[at + 10 : at + 12] = internet_checksum(bytes(out[at:l4])).to_bytes(2, "big")
    if not int.from_bytes(out[at + 6 : at + 8], "big") & 0x1FFF:
        _redact_l4(out, l4, out[at + 9])


def _redact_ipv6(out: bytearray, at: int, clients: ClientAddresses) -> None:
    _replace(out, at + 8, 16, clients)
    kind, at, is_first = out[at + 6], at + 40, True
    while kind in (*_EXTENSIONS, _FRAGMENT) and at + 8 <= len(out):
        size = 8
        if kind == _FRAGMENT:
            is_first = not int.from_bytes(out[at + 2 : at + 4], "big") & 0xFFF8
        else:
            size = (out[at + 1] + 1) * 8
            end = min(at + size, len(out))
            out[at + 2 : end] = bytes(end - at - 2)
        kind, at = out[at], at + size
    if is_first:
        _redact_l4(out, at, kind)


def _replace(out: bytearray, at: int, size: int, clients: ClientAddresses) -> None:
    """Replace the addresses of an IP header, the source's at `at`, and the hardware address of each end that is a client."""
    for start, mac_at in ((at, 6), (at + size, 0)):
        address = bytes(out[start : start + size])
        if clients.is_client(address):
            out[start : start + size] = clients.replacement(address)
            out[mac_at : mac_at + 6] = clients.mac_replacement(bytes(out[mac_at : mac_at + 6]))


def _redact_l4(out: bytearray, at: int, protocol: int) -> None:
    sum_at = at + _CHECKSUM_AT.get(protocol, len(out))
    if sum_at + 2 <= len(out):
        out[sum_at : sum_at + 2] = bytes(2)
    if protocol == _TCP and at + _TCP_HEAD <= len(out):
        _redact_tcp_options(out, at + _TCP_HEAD, min(at + (out[at + 12] >> 4) * 4, len(out)))


def _redact_tcp_options(out: bytearray, at: int, end: int) -> None:
    """Replace all options that are not known to be harmless by those that mean nothing."""
    while at < end and out[at] != _TCP_END:
        if out[at] == _TCP_NOP:
            at += 1
            continue
        size = out[at + 1] if at + 1 < end else 0
        if size < 2 or at + size > end:
            break
        if out[at] not in _TCP_KEPT:
            out[at : at + size] = bytes((_TCP_NOP,)) * size
        at += size
    if at < end:
        out[at:end] = bytes(end - at)
