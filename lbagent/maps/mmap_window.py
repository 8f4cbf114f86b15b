"""Windows over mmapable array maps: part of an array mapped into memory, so that a store is a write without a syscall.

Windows, not whole maps: a mapped page counts as resident memory of the agent.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

PAGE = mmap.ALLOCATIONGRANULARITY
SPAN_BYTES = 1 << 20  # bytes mapped at a time while storing
COUNTER_BYTES = 16  # bytes of packets and bytes in lb_metrics
DENSE_FACTOR = 4  # counters are all read at once when at least a fourth of them is requested


@contextmanager
def window(fd: int, offset: int, length: int, limit: int, *, writable: bool = True) -> Iterator[memoryview]:
    """Map bytes offset..offset+length of the array behind fd, whose value has `limit` bytes, readable and `writable`.

    The memory is released with its last view. Raises ValueError beyond the array, OSError from mmap.
    """
    if offset < 0 or length < 0 or offset + length > limit:
        raise ValueError(f"window {offset}+{length} is outside the {limit} bytes of the map")
    start = offset // PAGE * PAGE
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = mmap.mmap(fd, max(offset - start + length, 1), mmap.MAP_SHARED, protection, offset=start)
    whole = memoryview(mapped)
    view = whole[offset - start : offset - start + length]
    try:
        yield view
    finally:
        for part in (view, whole, mapped):
            _let_go(part)


def _let_go(part: memoryview | mmap.mmap) -> None:
    try:
        part.release() if isinstance(part, memoryview) else part.close()
    except BufferError:
        pass  # the caller still holds a cast of it: the mapping ends with that


def store(fd: int, words: Iterable[tuple[int, bytes]], limit: int) -> int:
    """Store 8-byte words at 8-aligned offsets, in order, each by one machine store; return how many.

    Neighbouring words share a window. Words are in host order, as a program loads them.
    """
    done = 0
    rest = iter(words)
    head = next(rest, None)
    while head is not None:
        base = head[0] // PAGE * PAGE
        held: list[tuple[int, bytes]] = []
        pending = list(_while_inside(chain((head,), rest), base, held))
        length = max(at for at, _ in pending) + 8 - base
        with window(fd, base, length, limit) as view:
            done += store_words(view, base, pending)
        head = held[0] if held else None
    return done


def _while_inside(
    words: Iterable[tuple[int, bytes]], base: int, held: list[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    """Yield words while they are in the span from `base`; the first one outside goes to `held`."""
    for word in words:
        if not base <= word[0] < base + SPAN_BYTES:
            held.append(word)
            return
        yield word


def store_words(view: memoryview, base: int, words: Iterable[tuple[int, bytes]]) -> int:
    """Store words through a view that starts at `base` of the map; return how many."""
    done = 0
    with view.cast("Q") as cells:
        for offset, data in words:
            cells[(offset - base) >> 3] = int.from_bytes(data, sys.byteorder)
            done += 1
    return done


def store_parts(fd: int, offset: int, stride: int, parts: bytes, width: int, limit: int) -> None:
    """Store packed parts of `width` bytes at offset, offset + stride, ...: each 8-byte word by one machine store."""
    at_once = max(SPAN_BYTES // stride, 1)
    for first in range(0, len(parts) // width, at_once):
        piece = parts[first * width : (first + at_once) * width]
        length = parts_span(piece, stride, width)
        with window(fd, offset + first * stride, length, limit) as view:
            store_parts_in(view, stride, piece, width)


def parts_span(parts: bytes, stride: int, width: int) -> int:
    """Return the number of bytes from the start of the first part to the end of the last one."""
    return (len(parts) // width - 1) * stride + width


def store_parts_in(view: memoryview, stride: int, parts: bytes, width: int) -> None:
    """Store parts through a view of their span.

    Python copies a slice with a step item by item, which are 8 bytes here; a slice without a step would be copied as a whole, in
    any pieces.
    """
    if stride <= 8:
        raise ValueError(f"words {stride} bytes apart are not stored one by one")
    with view.cast("Q") as cells, memoryview(parts) as raw, raw.cast("Q") as words:
        for at in range(width // 8):
            cells[at :: stride // 8] = words[at :: width // 8]


def counters(view: memoryview, row: int, indexes: Sequence[int]) -> list[tuple[int, int]]:
    """Return packets and bytes by index, summed over the records of `row` bytes in lb_metrics."""
    if not indexes:
        return []
    first, count = min(indexes), max(indexes) - min(indexes) + 1
    with view.cast("Q") as cells:
        starts = range(0, len(cells), row // 8)
        if count > len(indexes) * DENSE_FACTOR:
            sums = {i: sum([cells[at + i] for at in starts]) for n in indexes for i in (2 * n, 2 * n + 1)}
            return [(sums[2 * n], sums[2 * n + 1]) for n in indexes]
        rows = [cells[at + 2 * first : at + 2 * (first + count)].tolist() for at in starts]
    total = list(map(sum, zip(*rows, strict=True)))
    return [(total[2 * (n - first)], total[2 * (n - first) + 1]) for n in indexes]


def zero_counters(view: memoryview, row: int, indexes: Iterable[int]) -> None:
    """Set packets and bytes of these indexes to 0 in every record; neighbours at once, as there may be a hundred records."""
    for first, end in runs_of(indexes):
        zero = bytes(COUNTER_BYTES * (end - first))
        for at in range(0, len(view), row):
            view[at + COUNTER_BYTES * first : at + COUNTER_BYTES * end] = zero


def store_zero_counters(fd: int, row: int, indexes: Iterable[int], limit: int) -> None:
    """Do the same as `zero_counters` in the map behind fd: in each record only the pages of these indexes are mapped.

    A lone change zeroes one counter; mapping all of them, some MiB per record, takes longer than the change.
    """
    near: list[list[tuple[int, int]]] = []
    for run in runs_of(indexes):
        if near and (run[1] - near[-1][0][0]) * COUNTER_BYTES <= SPAN_BYTES:
            near[-1].append(run)
        else:
            near.append([run])
    for runs in near:
        first, behind = runs[0][0], runs[-1][1]
        for at in range(0, limit, row):
            with window(fd, at + COUNTER_BYTES * first, COUNTER_BYTES * (behind - first), limit) as view:
                for start, end in runs:
                    zero = bytes(COUNTER_BYTES * (end - start))
                    view[COUNTER_BYTES * (start - first) : COUNTER_BYTES * (end - first)] = zero


def runs_of(indexes: Iterable[int]) -> list[tuple[int, int]]:
    """Return (first, last + 1) of consecutive indexes."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if runs and index <= runs[-1][1]:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs
