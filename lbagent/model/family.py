"""Family: IPv4 or IPv6, the size of its addresses and the names of its maps. The bytes of the maps are in maps/."""

from __future__ import annotations

from enum import IntEnum


class Family(IntEnum):
    """An address family; as an int 4 or 6, the digit in the names of its maps and programs."""

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

    @staticmethod
    def of_map(map_name: str) -> Family | None:
        """Return the family of a map name that `map` returned; None for a map of both families, such as lb_filter."""
        return _BY_DIGIT.get(map_name[2])

    def map(self, name: str) -> str:
        """Return the full name of the family's own map: `service` is `lb4_service` or `lb6_service`."""
        return f"lb{self.digit}_{name}"


_IPV4, _IPV6 = Family.IPV4, Family.IPV6
_BY_DIGIT = {family.digit: family for family in Family}
