"""Extra SNAT addresses of this node (`--snat-address`): their numbers, and the ids by which flows refer to them. Pure.

A backend's first source address is its route's. Flows that find no port of it use an extra SNAT address. Each backend has a path
record for address number K, K * `extra_snat_stride` records behind its first one, with its own id. So only backends with an id
below the stride can have extra SNAT addresses, and new ids stay below it while there are any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

MAX_EXTRA_SNAT = 4  # of each family; numbered from 1
# Share of a backend's ports in use: a new flow checks some dozens, and hardly finds a free one beyond this.
SHORT_OF_PORTS = 0.9


class ExtraSnatAddress(Struct, frozen=True, gc=False):
    """An extra SNAT address of one family, packed. Not `present`: no device of the node has it, so no new flow uses it."""

    number: int
    address: bytes
    present: bool = True


class ExtraSnatSources(Struct, frozen=True):
    """The addresses of each family in the order of their numbers, from 1 on; b"" where a number is free.

    An address keeps its number as long as it is wanted: live flows refer to it by that.
    """

    ipv4: tuple[bytes, ...] = ()
    ipv6: tuple[bytes, ...] = ()

    def of_width(self, width: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, address) of the addresses with this many bytes."""
        addresses = {4: self.ipv4, 16: self.ipv6}.get(width, ())
        yield from ((number, address) for number, address in enumerate(addresses, 1) if address)

    def addresses(self) -> tuple[bytes, ...]:
        """Return every address."""
        return tuple(address for address in (*self.ipv4, *self.ipv6) if address)

    def renumbered(self, wanted: Iterable[bytes]) -> ExtraSnatSources:
        """Return exactly the wanted addresses: existing ones keep their numbers, new ones get free numbers.

        Raises ValueError where a family has more than MAX_EXTRA_SNAT.
        """
        each = tuple(dict.fromkeys(wanted))
        return ExtraSnatSources(*(_placed(old, width, each) for old, width in ((self.ipv4, 4), (self.ipv6, 16))))


NO_EXTRA_SNAT_SOURCES = ExtraSnatSources()


def extra_snat_stride(backends: int) -> int:
    """Return the distance in records (of `backends`) between the path records of consecutive addresses."""
    return backends // (1 + MAX_EXTRA_SNAT)


def _placed(old: tuple[bytes, ...], width: int, wanted: tuple[bytes, ...]) -> tuple[bytes, ...]:
    mine = [address for address in wanted if len(address) == width]
    if len(mine) > MAX_EXTRA_SNAT:
        raise ValueError(f"{len(mine)} addresses of one family, at most {MAX_EXTRA_SNAT} are possible")
    places = [address if address in mine else b"" for address in old]
    places += [b""] * (MAX_EXTRA_SNAT - len(places))
    for address in mine:
        if address not in places:
            places[places.index(b"")] = address
    while places and not places[-1]:
        places.pop()
    return tuple(places)
