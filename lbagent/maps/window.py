"""Windows over mmapable array maps: part of an array's memory in ours, so that a store is a write without a syscall.

Windows, not whole maps: a mapped page counts as resident memory of the agent.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

PAGE = mmap.ALLOCATIONGRANULARITY
SPAN = 1 << 20  # bytes mapped at a time while storing


@contextmanager
def window(fd: int, offset: int, length: int, limit: int) -> Iterator[memoryview]:
    """Map bytes offset..offset+length of the array behind fd, whose value has `limit` bytes, readable and writable.

    The memory goes when the last view of it goes. Raises ValueError beyond the array, OSError from mmap.
    """
    if offset < 0 or length < 0 or offset + length > limit:
        raise ValueError(f"window {offset}+{length} is outside the {limit} bytes of the map")
    start = offset // PAGE * PAGE
    mapped = mmap.mmap(
        fd, max(offset - start + length, 1), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=start
    )
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
        length = min(max(at for at, _ in pending) + 8 - base, limit - base)
        with window(fd, base, length, limit) as view:
            done += store_words(view, base, pending)
        head = held[0] if held else None
    return done


def _while_inside(
    words: Iterable[tuple[int, bytes]], base: int, held: list[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    """Yield words as long as they lie in the span from `base`; the first one outside goes to `held`."""
    for word in words:
        if not base <= word[0] < base + SPAN:
            held.append(word)
            return
        yield word


def store_words(view: memoryview, base: int, words: Iterable[tuple[int, bytes]]) -> int:
    """Store words through a view that starts at `base` of the map; return how many."""
    done = 0
    with view[: len(view) // 8 * 8].cast("Q") as cells:
        for offset, data in words:
            cells[(offset - base) >> 3] = int.from_bytes(data, sys.byteorder)
            done += 1
    return done
