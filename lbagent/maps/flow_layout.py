"""The words of the flow tables, the SNAT slots and the spill maps, bit by bit: layout 1. The only place.

A record is some words of 64 bits in the machine's byte order; a field is a run of bits of one word. Addresses and ports lie in a
word as they lie in a packet: their bytes, from the lowest on, are in network order. IPv6 addresses are two words each. The
headers of the flow table (ct_*.h, snat*.h) get shifts, masks, word numbers and states from here (bpf/compiler/c_source.py); the
agent and its tools reject tables whose FLOW_LAYOUT differs (maps/pins.py). Source: docs/datapath.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from lbagent.model.family import Family

FLOW_LAYOUT = 1  # version of this layout: a reader of another version cannot read these tables


class BitField(NamedTuple):
    """Bits of a record: `width` bits from bit `shift` (0 is the lowest) of the word with this index."""

    word: int
    shift: int
    width: int

    @property
    def mask(self) -> int:
        """The field's bits, at their place in the word."""
        return ((1 << self.width) - 1) << self.shift

    def of(self, word: int) -> int:
        """Return the field's value in its word."""
        return word >> self.shift & ((1 << self.width) - 1)


class WordRecord(NamedTuple):
    """A record of 64-bit words with disjoint fields. Bits of no field are 0."""

    name: str
    word_names: tuple[str, ...]
    fields: Mapping[str, BitField]

    @property
    def words(self) -> int:
        """Words of a record."""
        return len(self.word_names)

    @property
    def size(self) -> int:
        """Bytes of a record."""
        return 8 * self.words


class FlowState(IntEnum):
    """States of a flow; ct_state.h has the transitions."""

    NEW = 0  # a SYN, or another protocol without a reply
    ESTABLISHED = 1  # the backend has answered
    CLOSING = 2  # established once: RST, or FIN of both sides
    MID = 3  # TCP: the first packet seen was no SYN


class ForwardMode(IntEnum):
    """Forwarding modes (forward.h). No number may change or be reused."""

    LOCAL = 0  # backend or client on this node: destination translated, source kept, handed to the stack
    SNAT = 1  # destination and source translated: replies come back to a SNAT port of this node
    DSR_IPIP = 2  # reserved: in an IP tunnel to the backend, which answers the client itself
    DSR_L2 = 3  # reserved: only the MAC address is changed, the backend answers the client itself
    REDIRECT = 4  # reserved: handed to a device as it is


class Fin(IntEnum):
    """Bits of the value word's `fin`: whose FIN was seen. UDP: CLIENT means that it continued after its first reply."""

    CLIENT = 1
    BACKEND = 2


def _record(name: str, words: str, fields: Mapping[str, BitField]) -> WordRecord:
    return WordRecord(name, tuple(words.split()), MappingProxyType(dict(fields)))


def _value_word(word: int) -> dict[str, BitField]:
    """Return the fields of a value word, which one compare-and-swap reads and replaces. All bits are used."""
    return {
        "value_generation": BitField(word, 0, 14),  # of the entry; 0 in a spill row
        "snat_generation": BitField(word, 14, 2),  # the lowest bits of the SNAT slot's, for a flow that has one
        "state": BitField(word, 16, 2),  # FlowState
        "fin": BitField(word, 18, 2),  # Fin
        "forward": BitField(word, 20, 16),  # a SNAT port in network order, or a ForwardMode: FORWARD_PORT_BITS
        "backend_generation": BitField(word, 36, 8),
        "backend": BitField(word, 44, 20),  # id; 0: none
    }


def _seen_word(word: int) -> dict[str, BitField]:
    """Return the fields of a seen word, which are written separately."""
    return {
        "last_seen": BitField(word, 0, 16),  # ticks
        "bucket": BitField(word, 16, 16),  # of the bucket, not of the entry: way 0 the insert version, way 1 two stamps
        "service": BitField(word, 32, 16),  # id of the frontend
        "client_hop": BitField(word, 48, 16),  # next hop to the client, 12 bits; of an opening flow its handshake word
    }


FLOW = {
    Family.IPV4: _record(
        "flow4",
        "owner vip value seen",
        {
            "generation": BitField(0, 0, 14),
            "l4": BitField(0, 14, 2),  # PathL4
            "client_port": BitField(0, 16, 16),
            "client": BitField(0, 32, 32),
            "vip_generation": BitField(1, 0, 14),
            "vip_port": BitField(1, 16, 16),
            "vip": BitField(1, 32, 32),
        }
        | _value_word(2)
        | _seen_word(3),
    ),
    Family.IPV6: _record(
        "flow6",
        "owner client client_end vip vip_end value seen checksum",
        {
            "generation": BitField(0, 0, 14),
            "l4": BitField(0, 14, 2),
            "vip_tail": BitField(0, 16, 16),  # the last 16 bits of the VIP once more
            "vip_port": BitField(0, 32, 16),
            "client_port": BitField(0, 48, 16),
            "client": BitField(1, 0, 64),
            "client_end": BitField(2, 0, 64),
            "vip": BitField(3, 0, 64),
            "vip_end": BitField(4, 0, 64),
        }
        | _value_word(5)
        | _seen_word(6)
        | {
            "checksum": BitField(7, 0, 16),
            "checksum_mark": BitField(7, 16, 48),
        },  # L4 checksum difference, and a mark of its inputs
    ),
}


def _slot_meta(word: int) -> dict[str, BitField]:
    return {
        "meta_generation": BitField(word, 0, 4),
        "stamp": BitField(word, 4, 12),  # when the lease began, in units of SNAT_STAMP_TICKS
        "client_hop": BitField(word, 16, 12),
        "service": BitField(word, 28, 16),
        "backend": BitField(word, 44, 20),
    }


SNAT = {
    Family.IPV4: _record(
        "snat4",
        "holder meta",
        {
            "generation": BitField(0, 0, 16),
            "client_port": BitField(0, 16, 16),
            "client": BitField(0, 32, 32),
        }
        | _slot_meta(1),
    ),
    Family.IPV6: _record(
        "snat6",
        "holder client client_end meta",
        {
            "generation": BitField(0, 0, 16),
            "held": BitField(0, 16, 1),
            "client_port": BitField(0, 48, 16),
            "client": BitField(1, 0, 64),
            "client_end": BitField(2, 0, 64),
        }
        | _slot_meta(3),
    ),
}

# The key of a spill row is an entry's key words (IPv4: owner and VIP word; IPv6: owner and both addresses) with generation 0. The
# row for replies has the backend in the place of the VIP, and REPLY_MARK in the generation of the word with its port.
SPILL_KEY_WORDS = {Family.IPV4: 2, Family.IPV6: 5}
SPILL_VALUE = _record("spill", "value seen", _value_word(0) | _seen_word(1))
REPLY_MARK = 1

OWNER_HELD_SHIFT = 16  # an owner word >> this is 0 for a free or busy entry, and for a free SNAT slot
OWNER_BUSY_SHIFT = 15  # this bit alone beside the generation: the entry is being written
# Of `forward`. The configuration allows no SNAT port below 256, so its low byte tells a port from a mode.
FORWARD_PORT_BITS = 0xFF  # not all 0: a SNAT port
FORWARD_MODE_SHIFT = 8  # else ForwardMode is above; SNAT without a port waits for one
BACKEND_GENERATION_TURNED = (
    0x80  # a backend's generation ^ this is one that no path record has for the next 128 backends
)
# Bits of `client_hop` as the handshake word of an opening flow (ct_state.h has their meaning): if one of the first two is set,
# the rest is no next hop.
HANDSHAKE_ANSWERED, HANDSHAKE_OLDER, HANDSHAKE_NUMBER = 0x8000, 0x4000, 0x3FFF
AFTER_RST_CLIENT, AFTER_RST_BACKEND = 0x1000, 0x2000  # and beside the next hop of a flow that a RST has ended
SNAT_STAMP_TICKS = 8  # ticks of a SNAT slot's stamp
