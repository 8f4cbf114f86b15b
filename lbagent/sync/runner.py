"""Runs one target: it gets the latest State when it is free, and is called again when it failed or asks for it."""

from __future__ import annotations

import asyncio
import logging
import time

from lbagent.errors import LbError
from lbagent.model.state import State
from lbagent.sync.backoff import Failure, delays, failed_again
from lbagent.sync.pacer import Pacer
from lbagent.sync.target_protocol import Desired, Target

log = logging.getLogger(__name__)


class TargetRunner:
    """Calls `reconcile` of one target, once at a time. A State that is followed by another before its turn is left out."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.failure: Failure | None = None  # the last pass failed as a whole
        self._desired = Desired(State())
        self._has_desired = asyncio.Event()  # there is a State
        self._begun = 0  # passes
        self._ended = 0
        self._progress = asyncio.Condition()
        self._pacer = Pacer()

    @property
    def error(self) -> str:
        """What failed last, '' when nothing fails now."""
        if self.failure:
            return str(self.failure.error)
        return self.target.error or next((str(failure.error) for failure in self.target.failing.values()), "")

    @property
    def in_sync(self) -> bool:
        """Whether the latest State is in force, whole."""
        return self.target.ready.is_set() and not (self.error or self.target.wake.is_set() or self._begun > self._ended)

    def set_desired(self, desired: Desired) -> None:
        """Replace the State to be made true."""
        self._desired = desired
        self._has_desired.set()
        self.target.wake.set()

    async def run(self) -> None:
        """Reconcile for ever, from the first State on."""
        await self._has_desired.wait()
        while True:
            await self._next()
            began = time.monotonic()
            self._begun += 1
            await self._reconcile(began)
            async with self._progress:
                self._ended = self._begun
                self._progress.notify_all()
            self._pacer.passed(began)

    async def settled(self) -> None:
        """Return when everything handed over so far is in force, or failing."""
        wanted = self._begun + self.target.wake.is_set()
        async with self._progress:
            await self._progress.wait_for(lambda: self.failure or self._ended >= wanted)

    async def _next(self) -> None:
        """Wait until the target must be called: a new State, its own request, or a retry that is due."""
        wake = self.target.wake
        if self.failure:
            await asyncio.sleep(max(0.0, self.failure.retry_at - time.monotonic()))
        else:
            due = self.target.retry_at()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                    await wake.wait()
            except TimeoutError:
                pass
        await self._pacer.pause()
        wake.clear()

    async def _reconcile(self, now: float) -> None:
        name, before = self.target.name, self.failure
        try:
            await self.target.reconcile(self._desired)
        except (LbError, OSError) as error:
            known = error if isinstance(error, LbError) else LbError(str(error))
            self.failure = failed_again(before, known, now, delays)
            if before is None or str(before.error) != str(known):
                log.error("a target could not be brought in sync", extra={"target": name, "error": str(known)})
        else:
            self.failure = None
            if before:
                log.info("a target is in sync again", extra={"target": name})
