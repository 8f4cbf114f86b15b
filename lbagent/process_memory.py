"""The agent's memory: releases that of a start and of a burst of changes, and excludes the result of a start from collections."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress

M_ARENA_MAX = -8  # mallopt(3)
# Garbage collections: none during a start, later seldom: a change of one service makes no cycles.
AT_START, LATER = (5_000_000, 20, 100), (10_000, 20, 100)
STORM_WRITES = 10_000  # map entries; the next changes reuse the memory of fewer ones
TRIM_CHECK_INTERVAL_S = 1.0
MAX_TRIM_CHECKS = 60  # limit if changes follow a start without a pause


def tune_allocator() -> None:
    """Prepare a start: threads share one heap (separate ones keep some MiB each), collections ignore the imports."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    gc.freeze()
    gc.set_threshold(*AT_START)


def release_startup_memory() -> None:
    """Release the memory of the start, and exclude its result from later garbage collections (0.07 s for 10,000 Services)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*LATER)
    trim()


def trim() -> None:
    """Return the free pages of the C library's heap to the kernel: some 10 ms."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


async def keep_memory_small(writes: Callable[[], int]) -> None:
    """Release the memory of the start after the first second without map writes (`writes` counts them); trim until cancelled."""
    last = writes()
    for _ in range(MAX_TRIM_CHECKS):
        await asyncio.sleep(TRIM_CHECK_INTERVAL_S)
        if (now := writes()) == last:
            break
        last = now
    release_startup_memory()
    await trim_after_storms(writes)


async def trim_after_storms(writes: Callable[[], int]) -> None:
    """Trim until cancelled, after each burst of map writes that is followed by a second without any; `writes` counts them all."""
    trimmed = last = writes()
    while True:
        await asyncio.sleep(TRIM_CHECK_INTERVAL_S)
        now = writes()
        if now == last and now - trimmed > STORM_WRITES:
            trimmed = now
            await asyncio.to_thread(trim)
        last = now
