"""Where the programs find flows and SNAT slots (ct_key.h, snat_slot.h): by hashes of addresses, ports and protocols. Pure."""

from __future__ import annotations

import sys

from msgspec import Struct

from lbagent.maps.flow_layout import FLOW
from lbagent.maps.layout import FLOW_WAYS, PathL4
from lbagent.model.family import Family

_WORD = (1 << 64) - 1
_FIRST, _SECOND = 0x9FB21C651E98DF25, 0x9E3779B97F4A7C15  # multipliers of mix() and mix6()
_NUMBERS = {PathL4.TCP: 6, PathL4.UDP: 17, PathL4.SCTP: 132, PathL4.NONE: 0}  # of the IP header. Source: IANA
_NO_CLIENT = 0x8000  # beside the protocol of a backend: no key of a client has this bit there
_EXTRA_SNAT_SALT = 0x9E3779B97F4A7C15
_L4_SHIFT = FLOW[Family.IPV4].fields["l4"].shift


class FlowEnd(Struct, frozen=True, gc=False):
    """A packed address and a port in host order."""

    address: bytes
    port: int

    @property
    def stored_port(self) -> int:
        """The port as it is stored in a word."""
        return int.from_bytes(self.port.to_bytes(2, "big"), sys.byteorder)


def flow_buckets(client: FlowEnd, l4: PathL4, seeds: tuple[int, int], entries: int) -> tuple[int, int]:
    """Return the numbers of a flow's first and second bucket in a table of so many entries (a power of two)."""
    if len(client.address) == 4:
        address = int.from_bytes(client.address, sys.byteorder)
        number = _mix4(address << 32 | client.stored_port << 16 | l4 << _L4_SHIFT, seeds)
    else:
        number = _mix6(client, _NUMBERS[l4], seeds)
    mask = entries - 1
    return (number & mask) // FLOW_WAYS, (number >> 32 & mask) // FLOW_WAYS


def snat_position(backend: FlowEnd, l4: PathL4, source: int, port: int, seeds: tuple[int, int], slots: int) -> int:
    """Return the SNAT slot of a port (host order) towards a backend, of so many slots (a power of two).

    `source`: number of the node's address that the backend sees, 0 for the first.
    """
    protocol = _NUMBERS[l4] | _NO_CLIENT
    if len(backend.address) == 4:
        address = int.from_bytes(backend.address, sys.byteorder)
        number = _mix4(address << 32 | backend.stored_port << 16 | protocol, seeds)
    else:
        number = _mix6(backend, protocol, seeds)
    return (number + source * _EXTRA_SNAT_SALT + port) & (slots - 1)


def _mix4(key: int, seeds: tuple[int, int]) -> int:
    """mix() of ct_key.h."""
    key = (key ^ seeds[0]) * (seeds[1] | 1) & _WORD
    key = (key ^ key >> 32) * _FIRST & _WORD
    return key ^ key >> 29


def _mix6(client: FlowEnd, protocol: int, seeds: tuple[int, int]) -> int:
    """mix6() of ct_key.h."""
    first, second = (int.from_bytes(part, sys.byteorder) for part in (client.address[:8], client.address[8:]))
    x = (first ^ seeds[0]) * (seeds[1] | 1) & _WORD
    x ^= x >> 32
    x = (x + second) * _FIRST & _WORD
    rest = (client.stored_port << 16 | protocol) * _SECOND & _WORD
    x = (x ^ x >> 32 ^ rest) * (seeds[0] | 1) & _WORD
    return x ^ x >> 29
