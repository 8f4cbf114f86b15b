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
from lbagent.probes.probe_protocol import InProgress, Outcome, Probe, QuickProbe
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.task_failure import log_failure

log = logging.getLogger(__name__)
JITTER = 0.1  # of an interval
GRID_S, GRIDS = 0.1, 20  # times are multiples of this, or of this part of an interval, if that is less
FIRST_S = 1.0  # the first checks are spread over this time, at most over an interval
UNUSABLE_S = 5.0  # retry delay after an unusable CA file


class Health(Struct, frozen=True, gc=False):
    """The health of a server. `since` is seconds since 1970, 0: it has not been checked yet, and counts as up."""

    up: bool = True
    since: float = 0.0
    last: str = ""  # the last check, in words
    has_failed: bool = False  # the last check

    @property
    def error(self) -> str:
        """Why the last check failed; '' if it succeeded."""
        return self.last if self.has_failed else ""


class Checker:
    """Checks one server at one address by one ProbeSpec, without end; several users may share it.

    It has no task of its own, and one timer: an agent may have 10,000 of them.
    """

    __slots__ = (
        "_asked",
        "_began",
        "_in_a_row",
        "_is_due",
        "_latest",
        "_loop",
        "_on_change",
        "_on_outcome",
        "_others",
        "_probe",
        "_quick",
        "_timer",
        "_uses",
        "check",
        "health",
        "problem",
        "server",
        "transitions",
    )

    def __init__(
        self,
        server: L3n4Addr,
        check: ProbeSpec,
        probe: Probe,
        *,
        health: Health,
        on_change: Callable[[Checker], None],
        on_outcome: Callable[[Outcome, float], None] | None = None,
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
        self._quick = probe if isinstance(probe, QuickProbe) else None
        self._latest: asyncio.Task[None] | InProgress | None = (
            None  # the check that began last, while it is in progress
        )
        self._others: tuple[asyncio.Task[None] | InProgress, ...] = ()  # earlier ones in progress
        self._loop = asyncio.get_running_loop()
        self._is_due = False  # and too many are in progress

    def start(self, first_s: float = FIRST_S) -> None:
        """Check until `close`; the first check is within this time, at most within an interval."""
        first_s = random.uniform(0, min(first_s, self.check.interval))
        self._timer = self._loop.call_later(first_s, self._begin)

    def close(self) -> None:
        """End checking."""
        self._timer.cancel()
        for check in self._in_progress():
            if isinstance(check, asyncio.Task):
                check.remove_done_callback(self._ended)
            check.cancel()
        self._latest, self._others = None, ()
        self._probe.close()

    def _in_progress(self) -> tuple[asyncio.Task[None] | InProgress, ...]:
        return self._others if self._latest is None else (*self._others, self._latest)

    def _begin(self) -> None:
        self._began, self._is_due = self._loop.time(), False
        if self._latest is not None:
            self._others = (*self._others, self._latest)
        if self._quick is not None:
            self._latest = self._quick.begin(self._answered)
        else:
            self._latest = task = self._loop.create_task(self._ask())
            task.add_done_callback(self._ended)
        if self.check.timeout > self.check.interval / 2:
            self._at(self._began + self.check.interval / 2, self._look)
        else:  # it ends before that
            self._at_next()

    def _look(self) -> None:
        """Check, after half an interval, whether the server is silent."""
        if self._latest is not None and self.health.up:
            self._due()
            return
        self._at_next()

    def _at_next(self) -> None:
        interval = self.check.interval * random.uniform(1 - JITTER, 1)
        self._at(self._began + (max(interval, UNUSABLE_S) if self.problem else interval), self._due)

    def _due(self) -> None:
        """Start the next check, as soon as not too many are in progress."""
        self._is_due = len(self._in_progress()) >= (self.check.fall if self.health.up else 1)
        if not self._is_due:
            self._begin()

    def _ended(self, task: asyncio.Task[None]) -> None:
        log_failure(task)
        self._end(task)

    def _answered(self, check: InProgress, outcome: Outcome) -> None:
        """Take the outcome of a check without a task."""
        if self._on_outcome is not None:
            self._on_outcome(outcome, time.monotonic() - check.began)
        self._take(outcome)
        self._end(check)

    def _end(self, check: asyncio.Task[None] | InProgress) -> None:
        if check is self._latest:
            self._latest = None
        else:
            self._others = tuple(each for each in self._others if each is not check)
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
        if self._on_outcome is not None:
            self._on_outcome(outcome, time.monotonic() - began)
        self._take(outcome)

    def _cannot(self, problem: str) -> None:
        """Log that it is not checked; its last known health stays."""
        if problem != self.problem:
            self.problem = problem
            log.error("servers are not checked", extra={"server": str(self.server), "reason": problem})
            self._on_change(self)

    def _take(self, outcome: Outcome) -> None:
        """Count an outcome; `fall` failures or `rise` successes in a row change the server's health."""
        up, first = self.health.up, not self.health.since
        self._in_a_row = self._in_a_row + 1 if outcome.is_up != up else 0
        turns = self._in_a_row >= (self.check.fall if up else self.check.rise)
        now = time.time()
        if turns:
            self._in_a_row = 0
            self.transitions += 1
            self.health = Health(not up, now, outcome.text, not outcome.is_up)
            say = log.info if self.health.up else log.warning
            fields = {"server": str(self.server), "check": outcome.text}
            say("a server is up" if self.health.up else "a server is down", extra=fields)
            self._on_change(self)
        elif first or outcome.text != self.health.last:
            self.health = Health(up, now if first else self.health.since, outcome.text, not outcome.is_up)
