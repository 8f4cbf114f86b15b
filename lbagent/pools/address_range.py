"""A range of addresses, as arithmetic on its ends: a /8 or an IPv6 /64 is never expanded."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from netaddr import AddrFormatError, IPAddress, IPNetwork, IPRange, IPSet

from lbagent.model.family import Family

BUGGY = (0x00, 0xFF)  # last bytes of IPv4 addresses that old devices treat as a network's own
# Source: RFC 6890: addresses that cannot be unicast addresses on a link
_NEVER = {
    "unspecified": IPSet(["0.0.0.0/8", "::/128"]),
    "loopback": IPSet(["127.0.0.0/8", "::1/128"]),
    "link-local": IPSet(["fe80::/10"]),
    "multicast": IPSet(["224.0.0.0/4", "ff00::/8"]),
    "broadcast": IPSet(["255.255.255.255/32"]),
}


class AddressRange(Struct, frozen=True, gc=False):
    """The addresses from `first` to `last`, inclusive; numbers as in the packed address, big-endian.

    `own_first` and `own_last` count the network's own addresses at its ends, which are buggy as well: of IPv4 the first and
    the last one (except for /31, RFC 3021), of IPv6 the first one (Subnet-Router anycast, RFC 4291 2.6.1; except for /127,
    RFC 6164).
    """

    family: Family
    first: int
    last: int
    own_first: int = 0
    own_last: int = 0

    def __contains__(self, address: bytes) -> bool:
        """Return whether a packed address is in the range."""
        return len(address) == self.family.address_bytes and self.first <= int.from_bytes(address) <= self.last

    def __str__(self) -> str:
        """Return `10.0.0.1-10.0.0.9`."""
        return f"{IPAddress(self.first, self.family)}-{IPAddress(self.last, self.family)}"

    def overlaps(self, other: AddressRange) -> bool:
        """Return whether the ranges overlap."""
        return self.family is other.family and self.first <= other.last and other.first <= self.last

    def is_buggy(self, address: bytes) -> bool:
        """Return whether an address of the range is a network's own, or an IPv4 address that ends with .0 or .255."""
        inner = self.first + self.own_first <= int.from_bytes(address) <= self.last - self.own_last
        return not inner or (len(address) == 4 and address[3] in BUGGY)

    def count(self, *, avoid_buggy: bool) -> int:
        """Return how many addresses can be allocated."""
        if not avoid_buggy:
            return self.last - self.first + 1
        first, last = self.first + self.own_first, self.last - self.own_last
        buggy = BUGGY if self.family is Family.IPV4 else ()
        return last - first + 1 - sum((last - byte) // 256 - (first - 1 - byte) // 256 for byte in buggy)

    def addresses(self, *, avoid_buggy: bool) -> Iterator[bytes]:
        """Iterate over the packed addresses that can be allocated, lowest first."""
        for number in range(self.first, self.last + 1):
            address = number.to_bytes(self.family.address_bytes)
            if not (avoid_buggy and self.is_buggy(address)):
                yield address


def parse_range(text: str) -> AddressRange:
    """Parse `FIRST-LAST`, `NETWORK/BITS` or one address. Raises ValueError with the reason."""
    head, dash, tail = (part.strip() for part in text.partition("-"))
    try:
        found = (
            _network(text.strip())
            if "/" in text and not dash
            else _between(text, IPAddress(head), IPAddress(tail if dash else head))
        )
    except (AddrFormatError, TypeError):
        raise ValueError(f"{text!r} is not an address, range or network") from None
    addresses = IPSet(IPRange(IPAddress(found.first, found.family), IPAddress(found.last, found.family)))
    for what, never in _NEVER.items():
        if not never.isdisjoint(addresses):
            raise ValueError(f"{text!r} contains {what} addresses, which no Service can have")
    return found


def _between(text: str, first: IPAddress, last: IPAddress) -> AddressRange:
    if first.version != last.version:
        raise ValueError(f"{text!r} begins and ends in two IP families")
    if first > last:
        raise ValueError(f"{text!r}: end is below start")
    return AddressRange(Family(first.version), int(first), int(last))


def _network(text: str) -> AddressRange:
    network = IPNetwork(text)
    if network.prefixlen == 0:
        raise ValueError(f"{text!r} covers the whole address space")
    if network.ip != network.cidr.ip:
        raise ValueError(f"{text!r} has host bits set; the network is {network.cidr}")
    own = int(network.size > 2)
    return AddressRange(Family(network.version), network.first, network.last, own, own if network.version == 4 else 0)
