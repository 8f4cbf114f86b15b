"""The answers of capabilities/sync.py: differences, and the generation that is in the maps."""

from __future__ import annotations

import asyncio
import math

from msgspec import Struct

from lbagent.errors import ConfigError, TimedOut
from lbagent.targets.data_plane import ShownPlane

MAX_WAIT_S = 60.0


class Differences(Struct):
    """The answer to GET /v1/verify."""

    differences: list[str]  # sentences


class Generation(Struct):
    """The answer to GET /v1/wait."""

    generation: int  # of the State that is in the maps


async def verify(plane: ShownPlane) -> Differences:
    """Return the differences of the data plane from what was written. Raises KernelError, and TimedOut before the start."""
    if not plane.first_pass.is_set():
        raise TimedOut("the agent has written no state yet; `lbagent status` shows what it waits for")
    return Differences(list(map(str, await plane.verify())))


async def wait_change(plane: ShownPlane, generation: str, timeout_s: str) -> Generation:
    """Return the generation in force when it differs from `generation`, at the latest after `timeout_s`. Raises ConfigError."""
    try:
        known, seconds = int(generation), float(timeout_s)
    except ValueError:
        raise ConfigError("generation and timeout_s must be numbers") from None
    if not math.isfinite(seconds):
        raise ConfigError("timeout_s must be a finite number")
    try:
        async with asyncio.timeout(max(0.0, min(seconds, MAX_WAIT_S))):
            return Generation(await plane.changed_from(known))
    except TimeoutError:
        return Generation(plane.generation)
