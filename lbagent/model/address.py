"""Addresses: IP texts and bytes, L4 protocols, scopes, and the L3n4Addr in every map key.

Addresses are packed bytes (4 or 16), ports are ints in host order; text exists only at the edges.
Source: cilium pkg/loadbalancer (behaviour); the protocol is part of every key and of `hash_key`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from ipaddress import IPv6Address
from typing import Self

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from lbagent.mapped_address import unmapped
from lbagent.model.family import Family


class L4Type(StrEnum):
    """A transport protocol. NONE is "any protocol": the wildcard entry of a ClusterIP address."""

    NONE = "NONE"
    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"

    # Enum's own __hash__ is a Python function: it would double the cost of every L3n4Addr as a dict key.
    __hash__ = str.__hash__

    @property
    def number(self) -> int:
        """The protocol number of the IP header; 0 for NONE. Source: IANA protocol numbers."""
        return _NUMBERS[self]

    @property
    def map_text(self) -> str:
        """The word of `map dump`: ANY for NONE."""
        return "ANY" if self is L4Type.NONE else self.value

    @classmethod
    def from_number(cls, number: int) -> L4Type:
        """Return the protocol of an IP header number; NONE for an unsupported one."""
        return _BY_NUMBER.get(number, cls.NONE)

    @classmethod
    def parse(cls, text: str) -> L4Type:
        """Return the protocol of a word in any case; ANY is NONE. Raises ValueError for an unknown one."""
        word = text.upper()
        try:
            return cls.NONE if word == "ANY" else cls(word)
        except ValueError:
            raise ValueError(f"unknown protocol {text!r}; use TCP, UDP or SCTP") from None


_NUMBERS = {L4Type.NONE: 0, L4Type.TCP: 6, L4Type.UDP: 17, L4Type.SCTP: 132}
_SLASHED = {kind: f"/{kind.value}" for kind in L4Type}
_BY_NUMBER = {number: kind for kind, number in _NUMBERS.items()}
ALL_PROTOCOLS = (L4Type.TCP, L4Type.UDP, L4Type.SCTP)


class Scope(IntEnum):
    """The sources that a frontend entry is for: outside the node, or pods and the node itself."""

    EXTERNAL = 0
    INTERNAL = 1

    __hash__ = int.__hash__


def parse_ip(text: str) -> bytes:
    """Return the packed address of an IPv4 or IPv6 text. Raises ValueError.

    Lenient as Kubernetes is for stored objects (KEP-4858): leading zeros of IPv4 bytes are decimal, an IPv4-mapped IPv6 address
    is the IPv4 address.
    """
    if ":" not in text:
        return _parse_ipv4(text)
    if "%" in text:
        raise ValueError(f"{text!r} is not an address of a service: it names an interface")
    try:
        packed = IPv6Address(text).packed
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None
    return unmapped(packed)


def _parse_ipv4(text: str) -> bytes:
    parts = text.split(".")
    try:
        # isdecimal, because int() accepts " 1", "+1" and "1_0", too; isascii, because it accepts digits of other scripts
        if len(parts) == 4 and text.isascii() and all(map(str.isdecimal, parts)):
            return bytes(map(int, parts))
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not an IP address")


def format_ip(address: bytes) -> str:
    """Return the text of a packed address, without brackets."""
    if len(address) == 4:
        a, b, c, d = address
        return f"{a}.{b}.{c}.{d}"
    return str(IPv6Address(address))


def parse_port(text: str) -> int:
    """Return a port of 0..65535. Raises ValueError."""
    if text.isascii() and text.isdecimal() and len(text) <= 5 and (port := int(text)) <= 0xFFFF:
        return port
    raise ValueError(f"{text!r} is not a port of 0-65535")


_ADDRESS_BYTES = (4, 16)
_IPV4, _IPV6 = Family.IPV4, Family.IPV6  # a look-up in an enum costs as much as the rest of `family`


class L4Addr(Struct, frozen=True, gc=False):
    """A port of a protocol."""

    protocol: L4Type
    port: int

    def __str__(self) -> str:
        """Return `80/TCP`."""
        return f"{self.port}/{self.protocol.value}"


class L3n4Addr(Struct, frozen=True, gc=False):
    """An address, port, protocol and scope: a frontend or a backend. Usable as a dict key; hashing is C code.

    A text or an `ipaddress` object as address, and a word as protocol, are accepted and converted to bytes and L4Type.
    """

    address: bytes
    port: int
    protocol: L4Type = L4Type.TCP
    scope: Scope = Scope.EXTERNAL
    cluster_id: int = 0
    last_port: int = 0  # of a frontend with a range of ports, which begins at `port`; 0: it has one port

    def __post_init__(self) -> None:
        """Convert the types of callers at the edge: two equal addresses must be equal keys. Raises ValueError."""
        if type(self.address) is not bytes:
            force_setattr(self, "address", parse_ip(str(self.address)))
        if type(self.protocol) is not L4Type:
            force_setattr(self, "protocol", L4Type.parse(self.protocol))
        if (self.port | self.last_port) >> 16 or len(self.address) not in _ADDRESS_BYTES:  # also a negative port
            raise ValueError(
                f"{self.address!r}, port {self.port}: an address needs 4 or 16 bytes and a port of 0-65535"
            )

    @property
    def family(self) -> Family:
        """The address family."""
        return _IPV4 if len(self.address) == 4 else _IPV6

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is IPv6."""
        return len(self.address) == 16

    @property
    def l4(self) -> L4Addr:
        """Port and protocol alone."""
        return L4Addr(self.protocol, self.port)

    @property
    def ip(self) -> str:
        """The address as text, without port and brackets."""
        return format_ip(self.address)

    @property
    def sort_key(self) -> tuple[int, bytes, int, int, int, int]:
        """Order by family, numeric address, port, protocol number, scope (the order of slots); a range after its first port."""
        return (len(self.address), self.address, self.port, self.protocol.number, self.scope, self.last_port)

    @property
    def port_text(self) -> str:
        """The port, or FIRST-LAST."""
        return f"{self.port}-{self.last_port}" if self.last_port else str(self.port)

    def has_port(self, port: int) -> bool:
        """Return whether packets to this port of the address are for it."""
        return self.port <= port <= (self.last_port or self.port)

    def overlaps(self, other: L3n4Addr) -> bool:
        """Return whether both have a port in common; the rest of the addresses is not compared."""
        return self.port <= (other.last_port or other.port) and other.port <= (self.last_port or self.port)

    def _format(self, tail: str) -> str:
        host = format_ip(self.address)
        if self.cluster_id:
            host += f"@{self.cluster_id}"
        if len(self.address) == 16:
            host = f"[{host}]"
        return f"{host}:{self.port_text}{tail}" + ("/i" if self.scope else "")

    def __str__(self) -> str:
        """Return `IPv4:Port[/i]` or `[IPv6]:Port[/i]`; `/i` marks the internal scope. A range is FIRST-LAST."""
        return self._format("")

    def with_protocol(self) -> str:
        """Return `IP:Port/PROTO[/i]`."""
        if len(self.address) == 4 and not (self.cluster_id or self.scope or self.last_port):  # nearly all of the many
            a, b, c, d = self.address
            return f"{a}.{b}.{c}.{d}:{self.port}{_SLASHED[self.protocol]}"
        return self._format(_SLASHED[self.protocol])

    def map_text(self) -> str:
        """Return `IP:Port/PROTO[/i]` as `map dump` writes it: ANY for any protocol."""
        return self._format(f"/{self.protocol.map_text}")

    def hash_key(self) -> bytes:
        """Return bytes that differ for each (address, cluster, ports, protocol, scope).

        They are 12 for IPv4, 24 for IPv6, and 2 more for a range.
        """
        return (
            self.address
            + self.cluster_id.to_bytes(4, "big")
            + self.port.to_bytes(2, "big")
            + bytes((self.protocol.number, self.scope))
            + (self.last_port.to_bytes(2, "big") if self.last_port else b"")
        )

    def with_scope(self, scope: Scope) -> L3n4Addr:
        """Return the same address in another scope."""
        return self if scope == self.scope else replace(self, scope=scope)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `IP:Port[-Last][/PROTO][/i]` with IPv6 in brackets and an optional `@CLUSTER` after the IP. Raises ValueError.

        Without a protocol it is TCP.
        """
        try:
            return cls._parse(text)
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address like 10.0.0.1:80/TCP or [fd00::1]:80/TCP: {error}") from None

    @classmethod
    def _parse(cls, text: str) -> Self:
        head, *words = text.split("/")
        scope = Scope.EXTERNAL
        if words and words[-1] == "i":
            scope = Scope.INTERNAL
            words.pop()
        if len(words) > 1:
            raise ValueError("too many parts after the port")
        host, colon, port = head.rpartition(":")
        if not colon:
            parse_ip(head)  # a text that is no address has a worse problem than a missing port
            raise ValueError("the port is missing")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed != (":" in host):
            raise ValueError("IPv6 needs brackets, IPv4 has none")
        host, at, cluster = (host[1:-1] if bracketed else host).partition("@")
        if at and not (cluster.isascii() and cluster.isdecimal() and int(cluster) < 1 << 32):
            raise ValueError(f"{cluster!r} is not a cluster id")
        protocol = L4Type.parse(words[0]) if words else L4Type.TCP
        first, dash, last = port.partition("-")
        ports = parse_port(first), parse_port(last) if dash else 0
        if dash and not 0 < ports[0] < ports[1]:
            raise ValueError(f"{port!r} is not a range of ports")
        return cls(parse_ip(host), ports[0], protocol, scope, int(cluster) if at else 0, ports[1])
