"""JoinedPlane: several data planes that divide the families, as requests and metrics read one.

Each has the frontends and backends of its family. Ids differ: those of further planes begin above the first one's (renderers.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.family import Family
from lbagent.model.handshakes import Handshakes
from lbagent.model.state import State
from lbagent.render.renderer_types import Difference
from lbagent.sync.backoff import Failure
from lbagent.targets.data_plane import (
    Counters,
    Counts,
    DataPlane,
    EgressOf,
    EgressPath,
    Feature,
    Flow,
    FlowCounts,
    FrontendOf,
    PlaneStatus,
    Traffic,
    Usage,
)


class JoinedPlane:
    """What all of them have in force, the serving one first."""

    def __init__(self, planes: Sequence[DataPlane]) -> None:
        self._planes = planes
        self.first_pass = planes[0].first_pass  # of the serving one: it decides when the agent starts to answer
        self._state, self._current, self._wanted = _Joined(), _Joined(), _Joined()
        self._rounds, self._seen = 0, [0] * len(planes)

    # --- the State ---

    @property
    def generation(self) -> int:
        """Return the sum of theirs: each grows."""
        return sum(plane.generation for plane in self._planes)

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that could not be written; each is of one plane."""
        return {frontend: failure for plane in self._planes for frontend, failure in plane.failing.items()}

    @property
    def waiting(self) -> str:
        """Why one of them is not ready."""
        return "; ".join(f"{plane.name}: {plane.waiting}" for plane in self._planes if plane.waiting)

    @property
    def state(self) -> State:
        """The States in force."""
        return self._state.of([plane.state for plane in self._planes])

    @property
    def current_state(self) -> State:
        """The States in force; before the first pass what an earlier agent left."""
        return self._current.of([plane.current_state for plane in self._planes])

    @property
    def wanted(self) -> State:
        """What was requested last of each."""
        return self._wanted.of([plane.wanted for plane in self._planes])

    async def changed_from(self, generation: int) -> int:
        """Return the generation in force as soon as it differs."""
        while self.generation == generation:
            waits = [asyncio.create_task(plane.changed_from(plane.generation)) for plane in self._planes]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                    with suppress(asyncio.CancelledError):
                        await wait
        return self.generation

    # --- what it shows ---

    @property
    def features(self) -> frozenset[Feature]:
        """What one of them can do."""
        return frozenset(chain.from_iterable(plane.features for plane in self._planes))

    @property
    def counts(self) -> Counts:
        """What they did; the duration is that of the slowest last pass."""
        each = [plane.counts for plane in self._planes]
        return Counts(
            sum(counts.syncs for counts in each),
            sum(counts.errors for counts in each),
            sum(counts.writes for counts in each),
            max(counts.last_duration_s for counts in each),
        )

    @property
    def sweeps(self) -> int:
        """How often each of them counted since the last time that all had: a number that grows by 1 contains such a count of each.

        A round may have begun before a change. So only every second one counts.
        """
        now = [plane.sweeps for plane in self._planes]
        if all(new > old for new, old in zip(now, self._seen, strict=True)):
            self._rounds, self._seen = self._rounds + 1, now
        return self._rounds // 2

    @property
    def restored(self) -> int:
        """Frontends that an earlier agent left."""
        return sum(plane.restored for plane in self._planes)

    @property
    def retained(self) -> int:
        """Frontends that stay as an earlier agent left them."""
        return sum(plane.retained for plane in self._planes)

    def status(self) -> PlaneStatus:
        """Return what all of them have; devices and files are those of the serving one, as others have none."""
        each = [plane.status() for plane in self._planes]
        first = each[0]
        return PlaneStatus(
            frontends=sum(status.frontends for status in each),
            backends=sum(status.backends for status in each),
            attach=first.attach,
            bpffs=first.bpffs,
            artifact=first.artifact,
            sweeps=first.sweeps,
            devices=[device for status in each for device in status.devices],
            cgroups=[cgroup for status in each for cgroup in status.cgroups],
            outputs=[output for status in each for output in status.outputs],
            usage=self.usage(),
        )

    def problems(self) -> Sequence[str]:
        """Return what is wrong with each."""
        return [problem for plane in self._planes for problem in plane.problems()]

    def usage(self) -> Mapping[str, Usage]:
        """Return how full each table is."""
        return {name: used for plane in self._planes for name, used in plane.usage().items()}

    def largest_namespaces(self, table: str) -> dict[str, int]:
        """Return which namespaces use most of a table."""
        return next((found for plane in self._planes if (found := plane.largest_namespaces(table))), {})

    def backend_states(self) -> Mapping[BackendState, int]:
        """Return how many backends are in which state."""
        return _sums(plane.backend_states() for plane in self._planes)

    def backend_count(self) -> int:
        """Return how many backends there are."""
        return sum(plane.backend_count() for plane in self._planes)

    def devices_attached(self) -> dict[str, bool]:
        """Return whether each device takes traffic."""
        return {name: taken for plane in self._planes for name, taken in plane.devices_attached().items()}

    def egress_paths(self) -> EgressOf:
        """Return how packets get to a backend: the plane that has it answers."""
        ways = [(plane.current_state.backends, plane.egress_paths()) for plane in self._planes]

        def egress_of(backend: Backend) -> EgressPath:
            return next((way(backend) for has, way in ways if backend.address in has), EgressPath())

        return egress_of

    def handshakes(self, backends: Sequence[int]) -> Mapping[int, Handshakes]:
        """Return those of each: ids of one are of no other."""
        return {ident: found for plane in self._planes for ident, found in plane.handshakes(backends).items()}

    def counters(self, *, backends: bool = True) -> Counters:
        """Return what all of them counted."""
        each = [plane.counters(backends=backends) for plane in self._planes]
        return Counters(
            reasons=_traffic_sums(found.reasons for found in each),
            services={ident: traffic for found in each for ident, traffic in found.services.items()},
            backends={ident: traffic for found in each for ident, traffic in found.backends.items()},
            live_flows={ident: flows for found in each for ident, flows in found.live_flows.items()},
            send_errors=_sums(found.send_errors for found in each),
            snat_ports=max(found.snat_ports for found in each),
            snat_addresses=_sums(found.snat_addresses for found in each),
            sessions=_sums(found.sessions for found in each),
            sessions_deleted=_sums(found.sessions_deleted for found in each),
            session_delete_errors=sum(found.session_delete_errors for found in each),
            stale_backends=sum(found.stale_backends for found in each),
            stale_backends_evicted=sum(found.stale_backends_evicted for found in each),
            handshakes={ident: found for one in each for ident, found in one.handshakes.items()},
            new_flows={ident: count for found in each for ident, count in found.new_flows.items()},
            snat_use=max((found.snat_use for found in each if found.snat_use is not None), default=None),
            snat_reclaimed=sum(found.snat_reclaimed for found in each),
            events=(sum(found.events[0] for found in each), sum(found.events[1] for found in each)),
        )

    async def count_flows(self) -> FlowCounts:
        """Count live flows of all; the age is that of the oldest count."""
        each = [await plane.count_flows() for plane in self._planes]
        live = [found.live for found in each if found.live is not None]
        if len(live) < len(each):
            return FlowCounts(None)
        return FlowCounts(
            {ident: flows for found in live for ident, flows in found.items()}, max(found.age_s for found in each)
        )

    def flows(self) -> Iterator[Sequence[Flow]]:
        """Yield the flows of each."""
        return chain.from_iterable(plane.flows() for plane in self._planes)

    def frontends_of_sockets(self, family: Family) -> FrontendOf:
        """Return what the plane with socket programs answers."""
        ways = [plane.frontends_of_sockets(family) for plane in self._planes]
        return lambda cookie, backend: next((found for way in ways if (found := way(cookie, backend))), None)

    @property
    def difference_count(self) -> int:
        """How many differences the last comparisons found."""
        return sum(plane.difference_count for plane in self._planes)

    async def verify(self) -> Sequence[Difference]:
        """Return in what each differs from what was written."""
        return [found for plane in self._planes for found in await plane.verify()]

    async def repair(self) -> Sequence[Difference]:
        """Return what `verify` returns, and have it written again."""
        return [found for plane in self._planes for found in await plane.repair()]


class _Joined:
    """A State of several, made again only when one of them is another object."""

    def __init__(self) -> None:
        self._parts: list[State] = []
        self._whole = State()

    def of(self, parts: list[State]) -> State:
        if len(parts) != len(self._parts) or any(a is not b for a, b in zip(parts, self._parts, strict=True)):
            services = tuple(chain.from_iterable(part.services for part in parts))
            self._parts, self._whole = parts, State(sum(part.generation for part in parts), services)
        return self._whole


Key = TypeVar("Key")


def _sums(each: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for found in each:
        total.update(found)
    return dict(total)


def _traffic_sums(each: Iterable[Mapping[str, Traffic]]) -> dict[str, Traffic]:
    total: dict[str, Traffic] = {}
    for found in each:
        for word, (packets, size) in found.items():
            before = total.get(word, (0, 0))
            total[word] = before[0] + packets, before[1] + size
    return total
