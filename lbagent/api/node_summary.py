"""The node on one page: `GET /v1/summary`, and the same as events. The field names are a contract: scripts read them.

The status page, `lbagent ui` and `lbagent top` read it. Counters are totals since the maps were made: two summaries give a rate.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from lbagent.api.agent_status import Status
from lbagent.errors import LbError
from lbagent.model.backend import Backend
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_cooperatively
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.sync.generation_history import PastGeneration
from lbagent.targets.data_plane import Counters, Traffic

MAX_ROWS = 500  # of services and of backends, without `?rows=`
MAX_CHANGES = 20
MAX_PROBLEMS = 100
EVENT_INTERVAL_S = 2.0  # between two events of a stream
SHARED_S = 1.0  # an event is made once for all streams that ask within this time
MAX_STREAMS = 16
EVENT_HEAD = b"retry: 2000\n\n"  # milliseconds after which a browser connects again

Item = TypeVar("Item", SVC, Backend)
Row = TypeVar("Row")


class ServiceTraffic(Struct, frozen=True, gc=False):
    """A frontend. Counters are None where the data plane counts none."""

    service: str  # NAMESPACE/NAME
    frontend: str  # ADDRESS:PORT/PROTOCOL, `/i` behind it: for clients inside the cluster
    selectable: int  # backends that take new flows
    backends: int
    packets: int | None  # to and from the frontend
    bytes: int | None
    new_flows: int | None  # that began
    flows: int | None  # live flows; None where another frontend has one of its backends: they are counted by backend


class BackendTraffic(Struct, frozen=True, gc=False):
    """A backend. Counters are None where the data plane counts none, or has too many backends."""

    backend: str  # ADDRESS:PORT/PROTOCOL
    node: str
    state: str
    flows: int | None  # live flows, when they were counted last
    packets: int | None
    bytes: int | None


class ReasonTraffic(Struct, frozen=True, gc=False):
    """The packets of one verdict."""

    reason: str
    packets: int
    bytes: int


class Summary(Struct, frozen=True):
    """The node at one moment. Of services and backends: those with most packets first."""

    time: float  # seconds since the epoch
    ready: bool
    generation: int  # of the State in force
    services: Sequence[ServiceTraffic]
    backends: Sequence[BackendTraffic]
    reasons: Sequence[ReasonTraffic]
    flows: int | None  # live flows, when they were counted last
    changes: Sequence[PastGeneration]  # the newest first
    problems: Sequence[str]  # one sentence each


class Reading(Protocol):
    """The data plane at one moment."""

    @property
    def state(self) -> State:
        """The State in force."""

    @property
    def counters(self) -> Counters:
        """What it counted; of many backends nothing. Raises KernelError."""


class NodeSummary:
    """Makes summaries, and the streams of them."""

    def __init__(
        self,
        status: Callable[[], Status],
        reading: Callable[[], Reading],
        newest: Callable[[int], Sequence[PastGeneration]],
    ) -> None:
        """`reading` returns a new one for each summary. `newest` returns so many of the last generations."""
        self._status, self._reading, self._newest = status, reading, newest
        self._shared: tuple[State, frozenset[int]] = (
            State(),
            frozenset(),
        )  # a State, and its backends of several frontends
        self.events = SummaryEvents(self._encoded)

    async def now(self, rows: int = MAX_ROWS) -> Summary:
        """Return the node as it is, with so many services and backends at most; 0: all. Raises KernelError."""
        return await run_cooperatively(self._made(rows), time.monotonic)

    def _made(self, rows: int) -> Cooperative[Summary]:
        status, reading = self._status(), self._reading()
        at, counters, state = time.time(), reading.counters, reading.state
        if self._shared[0] is not state:
            self._shared = (state, (yield from _shared_backends(state)))
        shared = self._shared[1]
        yield

        def service(svc: SVC) -> ServiceTraffic:
            known = [each.id for each in svc.backends]
            are_known = counters.live_flows and shared.isdisjoint(known)
            return ServiceTraffic(
                str(svc.name),
                svc.frontend.with_protocol(),
                len(svc.selectable),
                len(known),
                *_counted(counters.services.get(svc.id)),
                counters.new_flows.get(svc.id),
                sum(counters.live_flows.get(ident, 0) for ident in known) if are_known else None,
            )

        def backend(known: Backend) -> BackendTraffic:
            return BackendTraffic(
                known.address.with_protocol(),
                known.node_name,
                known.state.text,
                counters.live_flows.get(known.id, 0) if counters.live_flows else None,
                *_counted(counters.backends.get(known.id)),
            )

        return Summary(
            time=at,
            ready=status.ready,
            generation=state.generation,
            services=(
                yield from _busiest(
                    (svc for svc in state.services if not svc.wildcard), counters.services, service, rows
                )
            ),
            backends=(yield from _busiest(state.backends.values(), counters.backends, backend, rows)),
            reasons=[
                ReasonTraffic(reason, packets, size)
                for reason, (packets, size) in sorted(counters.reasons.items(), key=lambda item: -item[1][0])
                if packets
            ],
            flows=sum(counters.sessions.values()) if counters.sessions else None,
            changes=self._newest(MAX_CHANGES),
            problems=_problems(status),
        )

    async def _encoded(self) -> bytes:
        return msgspec.json.encode(await self.now())


class SummaryEvents:
    """Streams of encoded summaries (text/event-stream). One summary is made for all streams of a moment."""

    def __init__(self, encoded: Callable[[], Awaitable[bytes]]) -> None:
        self._encoded = encoded
        self._at, self._event = float("-inf"), b""
        self._making = asyncio.Lock()
        self.streams = 0

    def stream(self) -> AsyncGenerator[bytes, None]:
        """Return an endless stream of events; it is counted until it is closed. Raises TooManyStreams."""
        if self.streams >= MAX_STREAMS:
            raise TooManyStreams(f"{MAX_STREAMS} event streams are open already; GET /v1/summary answers")
        return self._stream()

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        with self._one_more():
            yield EVENT_HEAD
            while True:
                yield await self._latest()
                await asyncio.sleep(EVENT_INTERVAL_S)

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def _latest(self) -> bytes:
        """Return the event of this moment; a failure is an event `trouble` with one sentence."""
        async with self._making:
            if time.monotonic() - self._at >= min(SHARED_S, EVENT_INTERVAL_S / 2):
                try:
                    self._event = b"data: %b\n\n" % await self._encoded()
                except LbError as error:
                    self._event = b"event: trouble\ndata: %b\n\n" % msgspec.json.encode({"error": str(error)})
                self._at = time.monotonic()
            return self._event


class TooManyStreams(LbError):
    """No further event stream is served now."""


def _counted(traffic: tuple[int, int] | None) -> tuple[int | None, int | None]:
    return traffic or (None, None)


def _shared_backends(state: State) -> Cooperative[frozenset[int]]:
    """Return the ids of backends that several frontends have."""
    seen: set[int] = set()
    shared: set[int] = set()
    for number, svc in enumerate(state.services):
        if number % BETWEEN_YIELDS == 0:
            yield
        known = {each.id for each in svc.backends}
        shared |= known & seen
        seen |= known
    return frozenset(shared)


def _busiest(
    items: Iterable[Item], traffic: Mapping[int, Traffic], row: Callable[[Item], Row], count: int
) -> Cooperative[list[Row]]:
    """Return the rows of so many items (0: all), those with most packets first; equal ones keep their order."""
    none = (0, 0)
    found = list(items)
    yield
    wanted = heapq.nlargest(count or len(found), found, key=lambda item: traffic.get(item.id, none)[0])
    rows: list[Row] = []
    for at in range(0, len(wanted), BETWEEN_YIELDS):
        yield
        rows += map(row, wanted[at : at + BETWEEN_YIELDS])
    return rows


def _problems(status: Status) -> list[str]:
    """Return what is wrong: conditions with what to do, frontends that fail, the other sentences of the status."""
    found = [
        f"{each.text}; {each.remedy}" if each.remedy else each.text for each in status.conditions if not each.mended
    ]
    found += [f"{each.frontend} {each.service}: {each.error}" for each in status.failing]
    texts = " ".join(found)
    found += [text for text in status.problems if text not in texts]
    found += [text for source in status.sources for text in source.messages if text not in texts]
    return list(dict.fromkeys(found))[:MAX_PROBLEMS]
