"""Long work beside others: whoever waits for the event loop has a turn between two slices (model/cooperative.py)."""

from __future__ import annotations

import asyncio
import time

from lbagent.model.cooperative import Cooperative, T

SLICE_S = 0.01  # others wait about so long


async def run_cooperatively(work: Cooperative[T]) -> T:
    """Do the work, with a turn for everybody else every `SLICE_S`."""
    until = time.monotonic() + SLICE_S
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + SLICE_S
