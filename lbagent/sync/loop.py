"""The loop: sources -> resolve -> ids -> plan -> apply, until the maps hold what the objects say.

Nothing is written before every source has given its first full list, and after a start nothing is taken away that may be the
word of a source that cannot vouch yet for what its list did not hold (doubt.py). A lone change is written at once; a storm is
taken in steps that leave the loop air. What fails is tried again by itself with growing pauses, and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from lbagent.errors import LbError
from lbagent.maps.lbmaps import LBMaps, PathInfo
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.cooperative import run_cooperatively
from lbagent.model.ids import IdBook
from lbagent.model.state import State
from lbagent.objects.message_log import MessageLog
from lbagent.objects.records import Message
from lbagent.objects.source import Source
from lbagent.resolve import Resolver
from lbagent.sync.inbox import Inbox
from lbagent.sync.target.apply import Applied, applying
from lbagent.sync.target.backends import each_backend
from lbagent.sync.target.drift import drift
from lbagent.sync.target.failures import Failure, Failures
from lbagent.sync.target.plan import plan_paths, planning
from lbagent.sync.target.restore import restore
from lbagent.sync.target.retention import Parts, Retention, restored_state, restoring
from lbagent.sync.target.shadow import Shadow
from lbagent.sync.target.steps import Plan

log = logging.getLogger(__name__)
MAX_PAUSE_S = 0.2  # pause after a pass: as long as it took, at most this
MAX_DRIFT_LINES = 20  # differences told before everything is read again
RESYNC_S = 60.0


class Ways(Protocol):
    """How backends are reached now (agent/network.py)."""

    def path(self, backend: Backend) -> PathInfo:
        """Return the path to a backend."""

    def sources(self) -> Iterable[bytes]:
        """Return the addresses this node translates to."""

    async def prepare(self) -> bool:
        """Wait a moment until the paths asked for last can be used; say whether they must be asked for again."""

    def planned(self) -> None:
        """Take note that paths were asked for."""


class Counts(Struct):
    """What the loop did since it began."""

    syncs: int = 0
    errors: int = 0
    writes: int = 0
    drifts: int = 0  # times that somebody else had changed the maps
    last_duration_s: float = 0.0
    last_sync_at: float = 0.0  # seconds since the epoch


class Reconciler(Inbox):
    """Owner of desired State, ids and Shadow. Everything runs in the event loop, a large pass in slices.

    What others tell during a pass is taken up by the next one.
    """

    def __init__(
        self, maps: LBMaps, shadow: Shadow, book: IdBook, resolver: Resolver, sources: Sequence[Source], ways: Ways
    ) -> None:
        """Take the maps with their restored Shadow and ids; write nothing yet."""
        super().__init__(sources)
        self.state = State()  # as it is in the maps
        self.wanted = State()  # without ids; holds what found none too
        self.failures = Failures()
        self.messages: tuple[Message, ...] = ()
        self.counts = Counts()
        self.ready = asyncio.Event()  # the first full State is in the maps
        self.first_try = asyncio.Event()  # ready, or held back while what is in the maps keeps serving
        self.resync_s = RESYNC_S
        self.waiting = ""  # why nothing is written yet
        self.shadow = shadow
        self._left: State | None = None  # what an earlier agent left in the maps
        self._doubt: Retention | None = None  # while a source cannot vouch for what its first list did not hold
        self._unread: list[LbError] = []
        self._told = MessageLog(log, "object refused")
        self._maps = maps
        self._book = book
        self._resolver = resolver
        self._sources = sources
        self._ways = ways
        self._busy = asyncio.Lock()  # held while Shadow and maps differ: during a pass, or a look at the maps

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that could not be written, and why."""
        return self.failures.frontends

    @property
    def shown(self) -> State:
        """The State in the maps; before the first pass what an earlier agent left there."""
        if self.first_try.is_set() or not self.shadow.full:
            return self.state
        if self._left is None:
            self._left = restored_state(self.shadow, self._resolver.node_name)
        return self._left

    @property
    def kept(self) -> int:
        """Frontends that stay as the maps had them because a source cannot vouch for its list."""
        return self._doubt.kept if self._doubt else 0

    async def changed_from(self, generation: int) -> int:
        """Return the generation in the maps as soon as it is another one."""
        async with self._finished:
            await self._finished.wait_for(lambda: self.state.generation != generation)
        return self.state.generation

    # --- the loop ---

    async def run(self) -> None:
        """Reconcile for ever."""
        for source in self._sources:
            self.waiting = f"waiting for the first list of {source.name}"
            await source.synced.wait()
        self._wake.set()
        while True:
            await self._next()
            async with self._busy:
                began, asked = time.monotonic(), self._asked
                await self._weigh()
                await self._pass(began)
            self.first_try.set()
            self._left = None
            await self._announce(asked)
            await asyncio.sleep(min(time.monotonic() - began, MAX_PAUSE_S))

    async def watch_drift(self) -> None:
        """Look for ever, every `resync_s`, whether somebody else changed the maps, and put them right."""
        while True:
            await asyncio.sleep(self.resync_s)
            await self.ready.wait()
            try:
                await self.resync()
            except LbError as error:
                log.error("the maps could not be compared", extra={"error": str(error)})

    async def resync(self) -> list[str]:
        """Compare the maps with what was written, in slices; where they differ read them again and plan all anew."""
        found: list[str] = []
        differences = drift(self._maps, self.shadow)
        while len(found) < MAX_DRIFT_LINES:
            async with self._busy:
                difference = next(differences, None)
            if difference is None:
                break
            if difference:
                found.append(difference)
            else:
                await asyncio.sleep(0)
        for difference in found:
            log.warning("the maps were changed by somebody else", extra={"difference": difference})
        if found:
            self.counts.drifts += 1
            async with self._busy:
                self.shadow = restore(self._maps).shadow
            self._request()
        return found

    async def _next(self) -> None:
        """Wait for a change, or until something that failed is due."""
        due = self.failures.due()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _weigh(self) -> None:
        """Begin or end to doubt: until each source has vouched once for its list, nothing goes that may be of its objects."""
        doubtful = [] if self.ready.is_set() else [source.name for source in self._sources if not source.trusted]
        if doubtful and self._doubt is None and self.shadow.frontends:
            found = await run_cooperatively(restoring(self.shadow, self._resolver.node_name), time.monotonic)
            self._doubt = Retention(found, frozenset(self._book.backend_ids.in_use()))
        elif self._doubt and not doubtful:
            self._end_doubt()
        if self._doubt:
            self._doubt.sources = doubtful
            self.shadow.prune = False
        else:
            self.waiting = ""

    def _end_doubt(self) -> None:
        """Compare all with the maps from now on, so that what nobody names goes."""
        try:
            restored = restore(self._maps)
        except LbError as error:
            self._unread.append(error)  # tried again as any other trouble
            return
        self.shadow, self._doubt = restored.shadow, None
        self._resolver.remember(address for address, _ in restored.backend_ids)

    def _with_kept(self, known: State) -> State:
        """Add to what is known now what may not be taken away, and say so."""
        doubt = self._doubt
        if doubt is None:
            return known
        parts = Parts(self._store.services_of(doubt.sources), self._store.sliced())
        state = doubt.state(known, parts, self._resolver.overrides())
        if doubt.reason != self.waiting:
            log.warning("nothing is taken away yet", extra={"reason": doubt.reason})
        self.waiting = doubt.reason
        return state

    async def _pass(self, now: float) -> None:
        self._take_news()
        if self._doubt:
            self._resolver.remember(self._doubt.backends.union(self.state.backends))
        resolution = await run_cooperatively(self._resolver.resolving(), time.monotonic)
        self._tell(resolution.messages)
        self.wanted = self._with_kept(resolution.state)
        desired = self._numbered(await run_cooperatively(self._book.assigning(self.wanted), time.monotonic))
        held = self.failures.hold(self.shadow, now)
        served = bool(self.shadow.frontends)  # before the very first plan no packet can meet a new backend
        planned = await self._plan(desired)
        if planned.steps and served and await self._ways.prepare():
            planned = await self._plan(desired)
        done = await self._apply(planned, now)
        self.shadow.dirty |= held
        if self._paths_dirty:
            self._paths_dirty = False
            moved = await self._apply(plan_paths(self.shadow, each_backend(desired), self._ways.path), now)
            self._paths_dirty |= bool(moved.errors)
            done.errors.extend(moved.errors)
        self._ways.planned()
        done.errors.extend(self._unread)
        self._unread.clear()
        self._count_failures(desired, done.errors, now)
        self.state = desired
        self.counts.last_sync_at = time.time()
        if not self.ready.is_set() and self._doubt is None:
            self._book.release_restored()
            self.ready.set()

    def _take_news(self) -> None:
        """Take up what was told since the last pass began."""
        news, self._news = self._news, []
        if self._next_resolver is not None:
            self._resolver, self._next_resolver = self._next_resolver, None
            self._resolver.remember(self.state.backends)
            self._resolver.replace(self._store.snapshot())
        else:
            self._resolver.update(news)
        self.shadow.dirty |= self._suspects
        self._suspects = set()

    async def _plan(self, desired: State) -> Plan:
        work = planning(desired, self.shadow, self._ways.path, self._ways.sources())
        return await run_cooperatively(work, time.monotonic)

    def _numbered(self, assigned: State) -> State:
        """Count the States that were planned, over every resolver: a generation never comes twice."""
        if assigned.services != self.state.services:
            return State(self.state.generation + 1, assigned.services, assigned.since)
        return State(self.state.generation, assigned.services, assigned.since)

    async def _apply(self, planned: Plan, now: float) -> Applied:
        began = time.monotonic()
        result = await run_cooperatively(applying(planned, self._maps, self.shadow), time.monotonic)
        if not planned.steps and not planned.changes:
            return result  # takes over what is equal
        self.counts.last_duration_s = time.monotonic() - began
        self.counts.syncs += 1
        self.counts.writes += result.entries
        self.failures.written(change.frontend for change in planned.changes if change.frontend not in result.failed)
        self.failures.failed(result.failed.items(), now)
        if result.entries or result.failed:
            log.log(
                logging.INFO if result.entries else logging.DEBUG,  # one more try in vain: the failure was told
                "plan applied",
                extra={
                    "entries": result.entries,
                    "frontends": len(planned.changes),
                    "failed": len(result.failed),
                    "ms": round(1000 * self.counts.last_duration_s, 1),
                },
            )
        return result

    def _count_failures(self, desired: State, errors: Sequence[LbError], now: float) -> None:
        """Take note of what failed beside single writes, and forget frontends that are no longer wanted."""
        without_id = self._book.errors
        self.failures.failed(without_id, now)
        if self.failures.frontends:
            self.failures.forget(desired.by_frontend, [frontend for frontend, _ in without_id], self.shadow)
        self.failures.troubled(errors, now)
        self.counts.errors = self.failures.count

    def _tell(self, messages: tuple[Message, ...]) -> None:
        """Log what is newly wrong with the objects together."""
        if messages is not self.messages:
            self._told.tell(messages)
            self.messages = messages
