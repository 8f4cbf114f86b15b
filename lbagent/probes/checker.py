"""When a server is checked, and when it is up or down: interval, fall and rise. A slow server delays no other.

A check starts one interval after the previous one started, a little earlier at random, so that many agents do not send at once.
If a server that is up leaves a check without an answer for half an interval, the next one starts beside it: a silent server is
down after about fall times interval, not after fall times interval and timeout. At most `fall` checks of a server run at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.probes.probe_protocol import Outcome, Probe
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.task_failure import log_failure

log = logging.getLogger(__name__)
JITTER = 0.1  # of an interval
GRID_S, GRIDS = 0.1, 20  # times are multiples of this, or of this part of an interval, if that is less
FIRST_S = 1.0  # the first checks are spread over this time, at most over an interval
UNUSABLE_S = 5.0  # retry delay after an unusable CA file


class Health(Struct, frozen=True):
    """The health of a server. `since` is seconds since 1970, 0: it has not been checked yet, and counts as up."""

    up: bool = True
    since: float = 0.0
    last: str = ""  # the last check, in words


class Checker:
    """Checks one server at one address by one ProbeSpec, without end; several instances may share it."""

    def __init__(
        self,
        server: L3n4Addr,
        check: ProbeSpec,
        probe: Probe,
        *,
        health: Health,
        on_change: Callable[[], None],
        on_outcome: Callable[[Outcome, float], None],
        uses: Callable[[], int] = lambda: 1,
    ) -> None:
        """`health` is the server's last known health; `on_outcome` is called for each check, with its duration in seconds.

        `uses` is the number of checks for which a connection may be used.
        """
        self.server, self.check, self.health = server, check, health
        self.problem = ""  # why it cannot be checked
        self.transitions = 0
        self._probe, self._on_change, self._on_outcome = probe, on_change, on_outcome
        self._uses = uses
        self._asked = 0
        self._in_a_row = 0  # consecutive outcomes against the current health
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_due = False  # and too many are in progress

    async def run(self) -> None:
        """Check until cancelled."""
        first_s = random.uniform(0, min(FIRST_S, self.check.interval))
        self._timer = self._loop.call_later(first_s, self._begin)
        try:
            await self._loop.create_future()
        finally:
            self._timer.cancel()
            for task in self._running:
                task.remove_done_callback(self._ended)
                task.cancel()
            self._probe.close()

    def _begin(self) -> None:
        self._began, self._is_due = self._loop.time(), False
        self._latest = self._loop.create_task(self._ask())
        self._running.add(self._latest)
        self._latest.add_done_callback(log_failure)
        self._latest.add_done_callback(self._ended)
        self._at(self._began + self.check.interval / 2, self._look)

    def _look(self) -> None:
        """Check, after half an interval, whether the server is silent."""
        if not self._latest.done() and self.health.up:
            self._due()
            return
        interval = self.check.interval * random.uniform(1 - JITTER, 1)
        self._at(self._began + (max(interval, UNUSABLE_S) if self.problem else interval), self._due)

    def _due(self) -> None:
        """Start the next check, as soon as not too many are in progress."""
        self._is_due = len(self._running) >= (self.check.fall if self.health.up else 1)
        if not self._is_due:
            self._begin()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._is_due:
            self._due()

    def _at(self, when: float, what: Callable[[], None]) -> None:
        """Call a function at a time; calls of many servers that are close together wake the agent once."""
        grid = min(GRID_S, self.check.interval / GRIDS)
        self._timer = self._loop.call_at(math.ceil(when / grid) * grid, what)

    async def _ask(self) -> None:
        began = time.monotonic()
        self._asked += 1
        is_calm = self.health.up and not self._in_a_row
        try:
            outcome = await self._probe.ask(may_use_idle=is_calm and self._asked % self._uses() != 0)
        except (OSError, ValueError) as error:
            self._cannot(f"caFile {self.check.ca_file}: {getattr(error, 'strerror', None) or error}")
            return
        self.problem = ""
        self._on_outcome(outcome, time.monotonic() - began)
        self._take(outcome)

    def _cannot(self, problem: str) -> None:
        """Log that it is not checked; its last known health stays."""
        if problem != self.problem:
            self.problem = problem
            log.error("servers are not checked", extra={"server": str(self.server), "reason": problem})
            self._on_change()

    def _take(self, outcome: Outcome) -> None:
        """Count an outcome; `fall` failures or `rise` successes in a row change the server's health."""
        up, first = self.health.up, not self.health.since
        self._in_a_row = self._in_a_row + 1 if outcome.is_up != up else 0
        turns = self._in_a_row >= (self.check.fall if up else self.check.rise)
        now = time.time()
        if turns:
            self._in_a_row = 0
            self.transitions += 1
            self.health = Health(not up, now, outcome.text)
            say = log.info if self.health.up else log.warning
            fields = {"server": str(self.server), "check": outcome.text}
            say("a server is up" if self.health.up else "a server is down", extra=fields)
            self._on_change()
        else:
            self.health = Health(up, now if first else self.health.since, outcome.text)
