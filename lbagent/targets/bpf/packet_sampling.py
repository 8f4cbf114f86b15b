"""Which packets are recorded: all, or one in so many, as long as a reader has a request open.

The programs in force record new flows and refusals. For `monitor --all` and `capture` others take their place, which differ in two
settings, and go when the last reader has left. An agent that starts has no readers: what a killed one left in force goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from lbagent.errors import ConfigError, LbError, Refused
from lbagent.task_failure import log_failure

MAX_READERS = 16
MAX_EVERY = 1 << 20
BEAT_S = 1.0  # between two signs of life: a reader that has died is noticed by the next one
IN_FORCE, BEAT = b"event: sampling\ndata: {}\n\n", b": \n\n"
log = logging.getLogger(__name__)


class Sampled(NamedTuple):
    """What the programs record: one in `every` packets of the quick path (0: none), and whether also the frames that leave."""

    every: int = 0
    frames_after: bool = False


class PacketSampling:
    """The readers, and the programs for them. `apply` puts `wanted` in force, and raises LbError where it cannot."""

    def __init__(self, apply: Callable[[], Awaitable[object]]) -> None:
        self._apply = apply
        self._readers: dict[object, Sampled] = {}
        self._ending: asyncio.Task[None] | None = None
        self.is_possible = True  # the programs have event rings

    @property
    def wanted(self) -> Sampled:
        """What all readers need together."""
        found = self._readers.values()
        if not found:
            return Sampled()
        return Sampled(min(each.every for each in found), any(each.frames_after for each in found))

    def stream(self, every: int, *, frames_after: bool) -> AsyncGenerator[bytes, None]:
        """Return a stream of server-sent events: `sampling` once the programs are in force, then a comment each second.

        Closing it ends the request. Raises ConfigError, Refused.
        """
        if not 1 <= every <= MAX_EVERY:
            raise ConfigError(f"sample: {every} is not 1 to {MAX_EVERY}")
        if not self.is_possible:
            raise Refused("the agent keeps no events: start it without --events 0")
        if len(self._readers) >= MAX_READERS:
            raise Refused(f"{MAX_READERS} readers have packets recorded already")
        return self._stream(Sampled(every, frames_after))

    async def _stream(self, sampled: Sampled) -> AsyncGenerator[bytes, None]:
        key, before = object(), self.wanted
        self._readers[key] = sampled
        try:
            if self.wanted != before:
                await self._apply()
            yield IN_FORCE
            while True:
                await asyncio.sleep(BEAT_S)
                yield BEAT
        finally:
            before = self.wanted
            del self._readers[key]
            if self.wanted != before:
                self._ending = asyncio.create_task(self._end(), name="end of sampling")
                self._ending.add_done_callback(log_failure)

    async def _end(self) -> None:
        try:
            await self._apply()
        except LbError as error:  # the next change of settings puts it right
            log.error("packets continue to be recorded", extra={"error": str(error)})
