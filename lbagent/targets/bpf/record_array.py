"""Arrays by index in memory of their own: records of one size, reference counts of backends, users of the prefilter's bits.

Records are a copy of an array map, or of a hash keyed by small ids. Dictionaries of 200,000 counts took 10 to 16 MiB each.
"""

from __future__ import annotations

import mmap
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import count

from lbagent.maps.layout import is_zero

_NO_FILE = -1
_MANY = 255  # the byte of a bit whose number of users is in a dictionary
_PIECE = 4096


def zeroed_memory(size: int) -> mmap.mmap:
    """Return memory whose pages cost nothing until they are written."""
    return mmap.mmap(_NO_FILE, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class RecordArray:
    """Fixed-size records by index, all zero at first. Anonymous memory: the pages of unused ids cost nothing."""

    def __init__(self, record: int, count: int) -> None:
        self.record, self.count = record, count
        self.end = 0  # from this index on no record was ever set
        self._zero = bytes(record)
        self.memory = zeroed_memory(record * count)

    def get(self, index: int) -> bytes:
        """Return a record; b"" beyond the last one."""
        return self.memory[index * self.record : (index + 1) * self.record]

    def run(self, first: int, count: int) -> bytes:
        """Return records that follow each other, side by side."""
        return self.memory[first * self.record : (first + count) * self.record]

    def set(self, index: int, value: bytes) -> None:
        """Replace a record, or several that follow each other."""
        at = index * self.record
        self.memory[at : at + len(value)] = value
        self.end = max(self.end, index + len(value) // self.record)

    def set_each(self, records: Mapping[int, bytes]) -> None:
        """Replace records by index."""
        memory, size = self.memory, self.record
        for index, value in records.items():
            memory[index * size : (index + 1) * size] = value
        self.end = max(self.end, max(records, default=-1) + 1)

    def set_starts(self, first: int, values: bytes, length: int) -> None:
        """Replace the first `length` bytes, whole words of 8, of records that follow each other by those of `values`."""
        step, words = self.record // 8, len(values) // 8
        with memoryview(self.memory) as raw, raw.cast("Q") as cells, memoryview(values) as new, new.cast("Q") as column:
            for at in range(length // 8):
                cells[first * step + at : first * step + words : step] = column[at::step]
        self.end = max(self.end, first + words // step)

    def clear(self, index: int) -> None:
        """Zero a record."""
        self.set(index, self._zero)

    def is_clear(self, index: int) -> bool:
        """Whether a record is all zero."""
        return self.get(index) == self._zero

    def used(self) -> Iterator[int]:
        """Yield the index of each record that is not all zero."""
        step = 256
        for start in range(0, self.end, step):
            piece = self.memory[start * self.record : (start + step) * self.record]
            if not is_zero(piece):
                size, zero = self.record, self._zero
                yield from [start + at // size for at in range(0, len(piece), size) if piece[at : at + size] != zero]


class BackendRefs(MutableMapping[int, int]):
    """Reference counts by backend id; 0 is the same as none. What a count is made of: shadow.py."""

    def __init__(self, ids: int) -> None:
        """Ids are below `ids`; the maps may name others until they are put right."""
        self._kinds = memoryview(zeroed_memory(4 * ids)).cast("I")  # by id: an index of `_values`
        self._values = [0]
        self._kind_of = {0: 0}
        self._beyond: dict[int, int] = {}  # of ids that are none of these maps'
        self._used = 0
        self.end = 0  # from this id on none ever had a count

    def get(self, ident: int, default: int = 0) -> int:  # type: ignore[override]
        """Return the count of an id, `default` without one."""
        if ident < len(self._kinds):
            return self._values[self._kinds[ident]] or default
        return self._beyond.get(ident, default)

    def __getitem__(self, ident: int) -> int:
        """Return the count of an id. Raises KeyError without one."""
        found = self.get(ident)
        if not found:
            raise KeyError(ident)
        return found

    def __contains__(self, ident: object) -> bool:
        """Whether an id has a count."""
        return isinstance(ident, int) and bool(self.get(ident))

    def __setitem__(self, ident: int, value: int) -> None:
        """Replace a count."""
        if value and ident >= self.end:
            self.end = ident + 1
        if ident < len(self._kinds):
            self._used += bool(value) - bool(self._kinds[ident])
            self._kinds[ident] = self._kind(value)
        elif value:
            self._beyond[ident] = value
        else:
            self._beyond.pop(ident, None)

    def __delitem__(self, ident: int) -> None:
        """Forget a count."""
        self[ident] = 0

    def replace(self, refs: Mapping[int, int]) -> None:
        """Replace many counts. Those of ids that follow each other from a start's first plan cost no step each."""
        first, end = next(iter(refs), 0), next(iter(refs), 0) + len(refs)
        if len(refs) > 1 and end <= len(self._kinds) and all(map(int.__eq__, refs, count(first))):
            for value in set(refs.values()):
                self._kind(value)
            kinds = array("I", map(self._kind_of.__getitem__, refs.values()))
            self._used += kinds_used(kinds) - kinds_used(self._kinds[first:end])
            self._kinds[first:end] = memoryview(kinds)
            self.end = max(self.end, end)
            return
        for ident, value in refs.items():
            self[ident] = value

    def __len__(self) -> int:
        """Return how many ids have a count."""
        return self._used + len(self._beyond)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ids that have a count."""
        yield from (ident for ident, kind in enumerate(self._kinds) if kind)
        yield from self._beyond

    def numbers(self) -> Counter[int]:
        """Return how many ids have which count."""
        by_kind = Counter(self._kinds.tolist())
        found = Counter({self._values[kind]: number for kind, number in by_kind.items() if kind})
        found.update(self._beyond.values())
        return found

    def _kind(self, value: int) -> int:
        known = self._kind_of.get(value)
        if known is None:
            known = self._kind_of[value] = len(self._values)
            self._values.append(value)
        return known


def kinds_used(kinds: array[int] | memoryview) -> int:
    """Return how many of these are not 0."""
    return len(kinds) - kinds.tolist().count(0)


class BitUsers(Mapping[int, int]):
    """Numbers of users by bit; a bit without users is not there."""

    def __init__(self, bits: int) -> None:
        self._bytes = zeroed_memory(bits)
        self._many: dict[int, int] = {}

    def add(self, bit: int, by: int) -> int:
        """Add to the users of a bit, or take some away; return how many it has now, never fewer than 0."""
        users = max(0, (self.get(bit) or 0) + by)
        if users < _MANY:
            self._bytes[bit] = users
            self._many.pop(bit, None)
        else:
            self._bytes[bit] = _MANY
            self._many[bit] = users
        return users

    def add_each(self, bits: Iterable[int]) -> None:
        """Add one user to each of the bits; one that is named twice gets two."""
        counts = self._bytes
        for bit in bits:
            users = counts[bit] + 1
            if users < _MANY:
                counts[bit] = users
            else:
                self.add(bit, 1)

    def unused(self, bits: Iterable[int]) -> list[int]:
        """Return those of the bits that have no users."""
        counts = self._bytes
        return [bit for bit in bits if not counts[bit]]

    def __getitem__(self, bit: int) -> int:
        """Return the users of a bit. Raises KeyError when it has none."""
        users = self._bytes[bit]
        if not users:
            raise KeyError(bit)
        return self._many[bit] if users == _MANY else users

    def __contains__(self, bit: object) -> bool:
        """Whether a bit has users."""
        return isinstance(bit, int) and self._bytes[bit] != 0

    def __iter__(self) -> Iterator[int]:
        """Iterate over the bits that have users."""
        for start in range(0, len(self._bytes), _PIECE):
            piece = self._bytes[start : start + _PIECE]
            if not is_zero(piece):
                yield from (start + at for at, users in enumerate(piece) if users)

    def __len__(self) -> int:
        """Return how many bits have users."""
        return sum(1 for _ in self)
