"""Drains of backends: a backend in maintenance until its last flow has ended, or until its time is over.

Which drains there are is in the operator's file (sources/operator.py), so they go on after a restart of the agent. What each
still waits for is counted here, until it has ended, whether a command follows it or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from lbagent.api.used_backends import backends_used
from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import run_cooperatively
from lbagent.model.state import State
from lbagent.sources.operator import KeptDrain
from lbagent.targets.data_plane import FlowCounts

log = logging.getLogger(__name__)

DRAINING, DRAINED, TIMED_OUT = "draining", "drained", "timed-out"
CHECK_INTERVAL_S = 2.0  # between two counts while no command follows a drain: each is a sweep of the flow tables
OWN_SWEEPS = 2  # the sweep that was running when a drain began counted flows from before; the one after it is its own
KEEP_S = 60.0  # so long the end of a drain can be read of a backend that is gone or active again
MAX_DRAIN_S = 10 * 365 * 86400.0
NOT_COUNTED = FlowCounts(None)


class DrainProgress(Struct, gc=False):
    """A drain of a backend: it is kept over restarts of the agent until the backend's state is set or cleared."""

    state: str  # draining; drained: its last flow has ended; timed-out: some flows were left
    since: float  # seconds since the epoch
    timeout_s: float
    remaining_s: float  # until it times out; 0 when it has ended
    flows: int  # at the last count, of one that has ended at its end; -1: not counted yet
    flows_at_start: int  # the most that were counted, as a drain gets no new ones; -1: not counted yet
    counted: bool  # `flows` are of a count that began after the drain
    ended: float = 0.0  # seconds since the epoch; 0: it has not ended


class DrainRow(DrainProgress, kw_only=True, gc=False):
    """The drain of a backend, with its address."""

    address: str  # 10.0.0.1:8080/TCP


class DrainStore(Protocol):
    """What keeps drains over restarts: OperatorSource."""

    @property
    def drains(self) -> Mapping[str, KeptDrain]:
        """The drains by address, also those that have ended."""
        ...

    async def update_drains(self, drains: Iterable[KeptDrain], forgotten: Collection[str] = ()) -> None:
        """Keep what became of drains. Raises LbError."""
        ...


class _Drain(Struct):
    """One drain and what was counted of it. `stored` is what the store had last."""

    kept: KeptDrain
    stored: KeptDrain
    ends_at: float  # time.monotonic: a clock that is set ends no drain
    first_sweep: int | None = None  # that counts; None: the backend may still take new flows
    flows: int = -1  # -1: not counted yet
    counted: bool = False

    @property
    def is_going(self) -> bool:
        return not self.kept.result


class Drains:
    """Follows the drains of a store."""

    def __init__(
        self,
        store: DrainStore,
        state: Callable[[], State],
        count: Callable[[], Awaitable[FlowCounts]],
        sweeps: Callable[[], int],
        failing: Callable[[], Collection[L3n4Addr]] = tuple,
    ) -> None:
        """`state` is what the maps hold, except the backends of frontends that are `failing`."""
        self._store, self._state, self._count, self._sweeps, self._failing = store, state, count, sweeps, failing
        self._drains: dict[str, _Drain] = {}  # by address
        self._checking = asyncio.Lock()
        self._wake = asyncio.Event()
        self._failure = ""  # why the end of a drain could not be kept

    def begun(self, addresses: Iterable[L3n4Addr], timeout_s: float) -> list[KeptDrain]:
        """Return the drains of backends as they are to be kept: one that has not ended is prolonged, any other begins."""
        self._follow_store()
        now, out = time.time(), []
        deadline = now + min(timeout_s, MAX_DRAIN_S)
        for address in addresses:
            name = address.with_protocol()
            known = self._drains.get(name)
            if known is not None and known.is_going:
                out.append(replace(known.kept, deadline=max(deadline, known.kept.deadline)))
            else:
                out.append(KeptDrain(address=name, since=now, deadline=deadline))
        return out

    def rows(self) -> list[DrainRow]:
        """Return the drains as they were at the last count: first those that go on, each kind by time and address."""
        self._follow_store()
        order = (DRAINING, TIMED_OUT, DRAINED)
        rows = [_row(drain) for drain in self._drains.values()]
        return sorted(rows, key=lambda row: (order.index(row.state), row.since, row.address))

    def flows_left(self, most: int) -> dict[str, int]:
        """Return the flows of backends whose drain continues, by address, of at most so many."""
        going = ((name, drain.flows) for name, drain in self._drains.items() if drain.is_going and drain.flows >= 0)
        return dict(islice(going, most))

    async def check(self) -> None:
        """Count flows now, and end the drains whose last flow has ended or whose time is over."""
        self._wake.set()
        async with self._checking:
            self._follow_store()
            sweeps = self._sweeps()  # before the count, which is then at least as new
            counts = await self._count() if self._is_going else NOT_COUNTED
            wanted = {L3n4Addr.parse(name) for name in self._drains}
            found = await run_cooperatively(backends_used(self._state(), wanted), time.monotonic)
            backends = {backend.address.with_protocol(): backend for backend, _ in found}
            self._note(backends, counts, sweeps)
            await self._keep(backends)

    async def run(self) -> None:
        """Check periodically while a drain has not ended."""
        while True:
            self._follow_store()
            if self._is_going:
                await self.check()
                await asyncio.sleep(CHECK_INTERVAL_S)
                continue
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_S if self._drains else None):
                    await self._wake.wait()
                    continue
            await self.check()

    @property
    def _is_going(self) -> bool:
        return any(drain.is_going for drain in self._drains.values())

    def _follow_store(self) -> None:
        """Take over what begins, was prolonged or was cancelled in the store."""
        stored = self._store.drains
        for name in self._drains.keys() - stored.keys():
            del self._drains[name]
        for name, kept in stored.items():
            known = self._drains.get(name)
            if known is not None and known.stored is kept:
                continue
            ends_at = time.monotonic() + max(0.0, kept.deadline - time.time())
            if known is None or known.kept.since != kept.since:
                flows = kept.flows_at_end if kept.result else -1
                self._drains[name] = _Drain(kept, kept, ends_at, flows=flows, counted=bool(kept.result))
            elif kept != known.kept:
                known.kept, known.stored, known.ends_at = kept, kept, ends_at
            else:
                known.stored = kept

    def _note(self, backends: Mapping[str, Backend], counts: FlowCounts, sweeps: int) -> None:
        """Note the flows of each drain that has not ended, and its end. `sweeps` were finished before the count."""
        failing = {address.with_protocol() for address in self._failing()}
        for name, drain in self._drains.items():
            if not drain.is_going:
                continue
            backend = backends.get(name)  # one that is gone has no flow
            if name in failing or (backend is not None and backend.state is BackendState.ACTIVE):
                drain.first_sweep = None
            elif drain.first_sweep is None:
                drain.first_sweep = self._sweeps() + OWN_SWEEPS
            if counts.live is not None:
                drain.flows = counts.live.get(backend.id, 0) if backend is not None else 0
                drain.counted = drain.first_sweep is not None and sweeps >= drain.first_sweep
            if (
                drain.flows > drain.kept.flows_at_start
            ):  # the first count may be older than flows that the drain waits for
                drain.kept = replace(drain.kept, flows_at_start=drain.flows)
            if drain.counted and not drain.flows:
                drain.kept = replace(drain.kept, result=DRAINED, ended=time.time())
            elif time.monotonic() >= drain.ends_at:
                drain.kept = replace(drain.kept, result=TIMED_OUT, ended=time.time(), flows_at_end=max(0, drain.flows))

    async def _keep(self, backends: Mapping[str, Backend]) -> None:
        """Write what changed. What cannot be written holds in this process, and is written with the next check."""
        changed = [drain.kept for drain in self._drains.values() if drain.kept != drain.stored]
        outlived = [name for name, drain in self._drains.items() if _is_outlived(drain.kept, backends.get(name))]
        try:
            if changed or outlived:
                await self._store.update_drains(changed, outlived)
            self._failure = ""
        except LbError as error:
            if str(error) != self._failure:
                log.error("what became of drains could not be written", extra={"error": str(error)})
            self._failure = str(error)


def _is_outlived(kept: KeptDrain, backend: Backend | None) -> bool:
    """Return whether a drain ended some time ago, and its backend is gone or another one has its address."""
    is_over = bool(kept.result) and time.time() - kept.ended > KEEP_S
    return is_over and (backend is None or backend.state is BackendState.ACTIVE)


def _row(drain: _Drain) -> DrainRow:
    kept = drain.kept
    return DrainRow(
        address=kept.address,
        state=kept.result or DRAINING,
        since=kept.since,
        timeout_s=round(kept.deadline - kept.since, 3),
        remaining_s=0.0 if kept.result else round(max(0.0, drain.ends_at - time.monotonic()), 3),
        flows=drain.flows,
        flows_at_start=kept.flows_at_start,
        counted=drain.counted,
        ended=kept.ended,
    )
