"""RendererThread: runs the calls of one renderer in an event loop of its own.

A renderer may block: a system call, a library, or a defect of a plug-in. Only its own thread waits for it then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from lbagent.errors import LbError
from lbagent.render.renderer_names import RendererError

CALL_TIMEOUT_S = 10.0
FREE_TIMEOUT_S = 0.5  # at the end of the agent
TICK_S = 0.01
_T = TypeVar("_T")


class RendererThread:
    """One thread. It begins with the first call, and ends with `stop`, or with the process if a call does not return."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = ""  # the call that has not returned

    async def call(self, what: str, make: Callable[[], Awaitable[_T]], timeout_s: float = CALL_TIMEOUT_S) -> _T:
        """Return what a coroutine function returns. Raises LbError and OSError as they come.

        Raises RendererError for anything else that it raises, and when it does not return in time.
        """
        await self._become_free(timeout_s)
        future = asyncio.run_coroutine_threadsafe(self._run(what, make), self._started())
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RendererError(f"renderer {self._name}: {what} did not return within {timeout_s:g} s") from None

    def call_blocking(self, what: str, make: Callable[[], Awaitable[_T]], timeout_s: float = CALL_TIMEOUT_S) -> _T:
        """Do the same where no event loop runs, or where it may wait."""
        deadline = time.monotonic() + FREE_TIMEOUT_S
        while self._running:
            if time.monotonic() > deadline:
                raise RendererError(f"renderer {self._name}: {self._running} has not returned")
            time.sleep(TICK_S)
        future = asyncio.run_coroutine_threadsafe(self._run(what, make), self._started())
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise RendererError(f"renderer {self._name}: {what} did not return within {timeout_s:g} s") from None

    async def _run(self, what: str, make: Callable[[], Awaitable[_T]]) -> _T:
        self._running = what
        try:
            return await make()
        except (LbError, OSError, asyncio.CancelledError):
            raise
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            raise RendererError(f"renderer {self._name}: {what} raised {text}") from error
        finally:
            self._running = ""

    async def _become_free(self, timeout_s: float) -> None:
        """Wait for a call that was cancelled and blocks. Raises RendererError when it does not return."""
        deadline = time.monotonic() + timeout_s
        while self._running:
            if time.monotonic() > deadline:
                raise RendererError(f"renderer {self._name}: {self._running} has not returned")
            await asyncio.sleep(TICK_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # a daemon: a call that never returns does not keep the process
            threading.Thread(target=_run_loop, args=(self._loop,), name=f"renderer {self._name}", daemon=True).start()
        return self._loop

    def stop(self) -> None:
        """End the thread as soon as no call runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
