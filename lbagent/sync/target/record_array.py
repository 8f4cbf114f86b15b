"""Records of one size, side by side in memory and found by their index: a copy of an array map, or of a hash keyed by small ids."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping

_NO_FILE = -1


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
        for start in range(0, self.count, step):
            piece = self.memory[start * self.record : (start + step) * self.record]
            if piece.strip(b"\0"):
                size, zero = self.record, self._zero
                yield from [start + at // size for at in range(0, len(piece), size) if piece[at : at + size] != zero]
