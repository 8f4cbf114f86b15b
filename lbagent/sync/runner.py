"""Runs one target: it gets the latest State when it is free, and is called again after a failure or on its request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from lbagent.errors import LbError
from lbagent.model.state import State
from lbagent.sync.backoff import Failure, delays, failed_again
from lbagent.sync.pacer import Pacer
from lbagent.sync.target_protocol import Desired, Target

log = logging.getLogger(__name__)


class TargetRunner:
    """Calls `reconcile` of one target, one call at a time. A State that is replaced by another one before its turn is skipped."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.failure: Failure | None = None  # the last pass failed as a whole
        self.pending_since: float | None = None  # of the monotonic clock: since when a State waits to be put in force
        self.failures = 0  # passes that failed as a whole
        self.applied_s = 0.0  # what the last pass took that did not fail
        self.in_force_at = 0.0  # when the last one was, seconds since the epoch
        self.object_differences = 0  # from the objects of a new list, as object_verification.py found them last
        # called with the loop's generation and the pass's seconds
        self.on_in_force: list[Callable[[int, float], None]] = []
        self._desired = Desired(State())
        self._has_desired = asyncio.Event()  # there is a State
        self._begun = 0  # passes
        self._ended = 0
        self._progress = asyncio.Condition()
        self._pacer = Pacer()

    @property
    def error(self) -> str:
        """The last failure, '' if nothing fails now."""
        return self.whole_error or next((str(failure.error) for failure in self.target.failing.values()), "")

    @property
    def whole_error(self) -> str:
        """The last failure beside single frontends, '' if there is none."""
        return str(self.failure.error) if self.failure else self.target.error

    @property
    def problem(self) -> str:
        """What fails now, else why the target is not ready; '' when nothing is wrong."""
        return self.error or self.target.waiting

    @property
    def in_sync(self) -> bool:
        """Whether the latest State is completely in force."""
        return self.target.ready.is_set() and not (self.error or self.target.wake.is_set() or self._begun > self._ended)

    def set_desired(self, desired: Desired) -> None:
        """Replace the State to be applied."""
        self._desired = desired
        if self.pending_since is None:
            self.pending_since = time.monotonic()
        self._has_desired.set()
        self.target.wake.set()

    async def run(self) -> None:
        """Reconcile without end, from the first State on."""
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
        """Return when every State given so far is in force, or failing."""
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
        name, before, desired = self.target.name, self.failure, self._desired
        try:
            await self.target.reconcile(desired)
        except (LbError, OSError) as error:
            known = error if isinstance(error, LbError) else LbError(str(error))
            self.failure = failed_again(before, known, now, delays)
            self.failures += 1
            if before is None or before.error.key != known.key:
                log.error("a target could not be brought in sync", extra={"target": name, "error": str(known)})
        else:
            self.failure = None
            self.pending_since = None if desired is self._desired else now  # the next one came during this pass
            self.in_force_at = time.time()
            self.applied_s = time.monotonic() - now
            for call in self.on_in_force:
                call(desired.state.generation, self.applied_s)
            if before:
                log.info("a target is in sync again", extra={"target": name})
