"""A range of ports as prefixes: the entries of lb{4,6}_port_range, a longest-prefix match. Pure."""

from __future__ import annotations

from collections.abc import Iterator

PORT_BITS = 16


def port_prefixes(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (port, bits) of the fewest prefixes that cover the ports from `first` to `last`, and no other port."""
    while first <= last:
        zeros = PORT_BITS if not first else (first & -first).bit_length() - 1
        zeros = min(zeros, (last - first + 1).bit_length() - 1)
        yield first, PORT_BITS - zeros
        first += 1 << zeros
