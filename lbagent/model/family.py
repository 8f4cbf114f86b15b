"""Family: IPv4 or IPv6, and the size of its addresses."""

from __future__ import annotations

from enum import IntEnum


class Family(IntEnum):
    """An address family; as an int 4 or 6, `digit` as text."""

    IPV4 = 4
    IPV6 = 6

    digit: str
    address_bytes: int
    unspecified: bytes  # 0.0.0.0 or ::

    def __new__(cls, number: int) -> Family:
        """Store the sizes once: properties of an enum are slow, and a start reads them 100,000 times."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.digit = str(number)
        member.address_bytes = 4 if number == 4 else 16
        member.unspecified = bytes(member.address_bytes)
        return member

    __hash__ = int.__hash__

    @staticmethod
    def of(address: bytes) -> Family:
        """Return the family of a packed address."""
        return _IPV4 if len(address) == 4 else _IPV6


_IPV4, _IPV6 = Family.IPV4, Family.IPV6
