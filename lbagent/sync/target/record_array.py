"""Records of one size, side by side in memory and found by their index: a copy of an array map, or of a hash keyed by small ids."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_NO_FILE = -1


def zeroed_memory(size: int) -> mmap.mmap:
    """Return memory whose pages cost nothing until they are written."""
    return mmap.mmap(_NO_FILE, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class RecordArray:
    """Fixed-size records by index, all zero at first. Anonymous memory: the pages of unused ids cost nothing."""

    def __init__(self, record: int, count: int) -> None:
        self.record, self.count = record, count
        self._zero = bytes(record)
        self.memory = zeroed_memory(record * count)

    def get(self, index: int) -> bytes:
        """Return a record; b"" beyond the last one."""
        return self.memory[index * self.record : (index + 1) * self.record]

    def set(self, index: int, value: bytes) -> None:
        """Replace a record."""
        self.memory[index * self.record : (index + 1) * self.record] = value

    def set_start(self, index: int, value: bytes) -> None:
        """Replace the first bytes of a record."""
        at = index * self.record
        self.memory[at : at + len(value)] = value

    def clear(self, index: int) -> None:
        """Zero a record."""
        self.set(index, self._zero)

    def is_clear(self, index: int) -> bool:
        """Whether a record is all zero."""
        return self.get(index) == self._zero

    def used(self) -> Iterator[int]:
        """Yield the index of each record that is not all zero."""
        step = 256
        for start in range(0, self.count, step):
            piece = self.memory[start * self.record : (start + step) * self.record]
            if piece.strip(b"\0"):
                records = range(0, len(piece), self.record)
                yield from (start + at // self.record for at in records if any(piece[at : at + self.record]))
