"""The sets and maps of the table: names, keys and values as the kernel holds them, and as nft writes them. Pure.

A key is the concatenation of its fields, each padded to four bytes: addresses and ports in network order, the protocol's number,
a slot in the machine's order (numgen and jhash give it so). The key of a set of ranges is the first key and the last one, joined.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from ipaddress import ip_address, summarize_address_range
from typing import NamedTuple

from msgspec import Struct

from lbagent.model.address import L4Type, format_ip, parse_ip
from lbagent.model.family import Family

DEFAULT_TABLE = "lbagent"
MARKER = "lbagent 1"  # the comment of a table that is ours, with the number of its form
WORD = 4  # bytes of a register, and what a field is padded to
DEVICE_BYTES = 16  # IFNAMSIZ
INSIDE_OFFSET = 1 << 16  # the first slot of a frontend for pods and this node: no frontend has so many slots
AFFINITY_SIZE = 1 << 16


class Field(Enum):
    """A field of a key: bytes without padding (0: those of an address), and nft's number of its type."""

    ADDRESS = (0, 0)
    PROTOCOL = (1, 12)
    PORT = (2, 13)
    SLOT = (4, 4)
    DEVICE = (DEVICE_BYTES, 41)

    def width(self, family: Family) -> int:
        """Return its bytes in a key, padded."""
        size = self.value[0] or family.address_bytes
        return size + -size % WORD

    def size(self, family: Family) -> int:
        """Return its bytes without padding."""
        return self.value[0] or family.address_bytes

    def type_number(self, family: Family) -> int:
        """Return nft's number of its type."""
        return self.value[1] or _ADDRESS_TYPE[family]


class Value(Enum):
    """What an element leads to."""

    NOTHING = "set"
    VERDICT = "verdict"
    BACKEND = "backend"  # address . port


_ADDRESS_TYPE = {Family.IPV4: 7, Family.IPV6: 8}
ADDRESS, PROTOCOL, PORT, SLOT, DEVICE = Field
FRONTEND = (ADDRESS, PROTOCOL, PORT)


class Element(Struct, frozen=True, gc=False):
    """The value of a key: a verdict as nft writes it, the bytes of a backend, or None in a set; and the comment."""

    value: str | bytes | None = None
    comment: str = ""


class MapSpec(NamedTuple):
    """A set or map. `ranges`: keys are intervals; `dynamic`: packets add elements, which expire."""

    name: str
    family: Family
    key: tuple[Field, ...]
    value: Value = Value.NOTHING
    ranges: bool = False
    dynamic: bool = False

    @property
    def key_bytes(self) -> int:
        """Bytes of one key. A single field is not padded."""
        if len(self.key) == 1:
            return self.key[0].size(self.family)
        return sum(field.width(self.family) for field in self.key)

    @property
    def has_slot(self) -> bool:
        """Whether a number of a packet is part of the key: nft has no name for its type."""
        return SLOT in self.key

    @property
    def word(self) -> str:
        """`map` or `set`."""
        return "set" if self.value is Value.NOTHING else "map"

    def split(self, key: bytes) -> Iterator[tuple[Field, bytes]]:
        """Yield the fields of a key, without padding."""
        at = 0
        for field in self.key:
            yield field, key[at : at + field.size(self.family)]
            at += field.width(self.family)

    def order(self, key: bytes) -> bytes:
        """Return what sorts keys: by numbers, also where a slot is in the machine's order."""
        if self.has_slot and sys.byteorder == "little":
            return key[:-WORD] + key[: -WORD - 1 : -1]
        return key

    def key_words(self, key: bytes) -> list[str]:
        """Return the fields of a key as nft writes them."""
        first = [_text(field, part) for field, part in self.split(key)]
        if not self.ranges:
            return first
        last = [_text(field, part) for field, part in self.split(key[self.key_bytes :])]
        return [one if one == two else _network(one, two) for one, two in zip(first, last, strict=True)]

    def key_text(self, key: bytes) -> str:
        """Return a key as nft writes it."""
        return " . ".join(self.key_words(key))

    def value_text(self, value: str | bytes | None) -> str:
        """Return a value as nft writes it."""
        return value if isinstance(value, str) else backend_text(value or b"")

    def element_text(self, key: bytes, element: Element) -> str:
        """Return an element as nft writes it."""
        comment = f' comment "{element.comment}"' if element.comment else ""
        value = f" : {self.value_text(element.value)}" if element.value is not None else ""
        return self.key_text(key) + comment + value

    def declaration(self) -> list[str]:
        """Return the lines of its definition, without elements, as nft lists them."""
        six = "6" if self.family is Family.IPV6 else ""
        names = {
            ADDRESS: f"ip{'v6' if six else 'v4'}_addr",
            PROTOCOL: "inet_proto",
            PORT: "inet_service",
            DEVICE: "ifname",
        }
        values = {Value.VERDICT: " : verdict", Value.BACKEND: f" : {names[ADDRESS]} . inet_service", Value.NOTHING: ""}
        lines = ["type " + " . ".join(names.get(field, "") for field in self.key) + values[self.value]]
        if self.has_slot:
            key = f"ip{six} daddr . meta l4proto . th dport . numgen random mod {INSIDE_OFFSET}"
            lines = [f"typeof {key} : ip{six} daddr . th dport"]
        if self.dynamic:
            lines.append(f"size {AFFINITY_SIZE}")
        if self.ranges or self.dynamic:
            lines.append("flags " + ("interval" if self.ranges else "dynamic,timeout"))
        return lines


def _text(field: Field, part: bytes) -> str:
    if field is ADDRESS:
        return format_ip(part)
    if field is PROTOCOL:
        return L4Type.from_number(part[0]).value.lower()
    if field is DEVICE:
        return f'"{part.rstrip(bytes(1)).decode()}"'
    return str(int.from_bytes(part, "big" if field is PORT else sys.byteorder))


def _network(first: str, last: str) -> str:
    """Return a range of addresses: as a network where it is one."""
    found = list(summarize_address_range(ip_address(first), ip_address(last)))
    return str(found[0]) if len(found) == 1 else f"{first}-{last}"


def frontend_key(address: bytes, protocol: L4Type, port: int) -> bytes:
    """Return the key of a frontend."""
    return address + bytes((protocol.number, 0, 0, 0)) + port.to_bytes(2, "big") + bytes(2)


def slot_bytes(slot: int) -> bytes:
    """Return what follows a frontend's key in the key of a slot."""
    return slot.to_bytes(WORD, sys.byteorder)


def backend_value(address: bytes, port: int) -> bytes:
    """Return the value that stands for a backend."""
    return address + port.to_bytes(2, "big") + bytes(2)


def backend_text(value: bytes) -> str:
    """Return a backend as nft writes it."""
    return f"{format_ip(value[:-WORD])} . {int.from_bytes(value[-WORD:-2], 'big')}"


def device_key(name: str) -> bytes:
    """Return the key of a device."""
    return name.encode().ljust(DEVICE_BYTES, b"\0")


def _of_family(family: Family) -> Sequence[MapSpec]:
    six = "6" if family is Family.IPV6 else "4"
    return (
        MapSpec(f"frontends{six}", family, FRONTEND, Value.VERDICT),
        MapSpec(f"internal{six}", family, FRONTEND, Value.VERDICT),
        MapSpec(f"backends{six}", family, (*FRONTEND, SLOT), Value.BACKEND),
        MapSpec(f"cluster_ips{six}", family, (ADDRESS,)),
        MapSpec(f"external{six}", family, FRONTEND),
        MapSpec(f"local{six}", family, (ADDRESS,)),
        MapSpec(f"hairpin{six}", family, (ADDRESS, ADDRESS)),
        MapSpec(f"ranges{six}", family, (*FRONTEND, ADDRESS), ranges=True),
        MapSpec(f"sticky{six}", family, FRONTEND, Value.VERDICT),
        MapSpec(f"nodes{six}", family, (ADDRESS,)),
        MapSpec(f"affinity{six}", family, (ADDRESS, *FRONTEND), Value.BACKEND, dynamic=True),
    )


MAPS = {
    spec.name: spec
    for spec in (
        MapSpec("protocols", Family.IPV4, (PROTOCOL,)),
        MapSpec("pod_devices", Family.IPV4, (DEVICE,)),
        *_of_family(Family.IPV4),
        *_of_family(Family.IPV6),
    )
}
PROTOCOLS = {bytes((kind.number,)): Element() for kind in (L4Type.TCP, L4Type.UDP, L4Type.SCTP)}


def range_key(frontend: bytes, first: bytes, last: bytes) -> bytes:
    """Return the key of a range of clients' addresses of a frontend."""
    return frontend + first + frontend + last


def address_of(text: str) -> bytes:
    """Return an address as bytes. Raises ValueError."""
    return parse_ip(text)
