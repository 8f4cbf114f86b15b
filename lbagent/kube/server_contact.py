"""Ends the pauses of the reflectors of a process after any successful request to the API server.

The renewal of a Lease is sent every few seconds, a reflector pauses up to 30 s after an outage.
"""

from __future__ import annotations

import asyncio


class ServerContact:
    """Shared by all clients of one API server."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def note_success(self) -> None:
        """Record that a request succeeded: every wait ends."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    async def success_within(self, seconds: float) -> bool:
        """Wait for a request that succeeds, for so many seconds at most; return whether there was one."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True
