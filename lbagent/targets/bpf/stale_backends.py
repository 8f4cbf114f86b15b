"""Backends that are gone from the slices of a Service with `stale-flows: keep` or `drain=SECONDS`, and what keeps their flows.

Such a backend stays a backend of the frontends that had it, without a slot: no new flow selects it, and a SYN selects another one.
It leaves when its flows have ended (a sweep that began later counts none), when its time is over, or when room is needed: then as
any backend that is gone. `lb_stale_backend` has the pairs of service id and backend id, each with the time (CLOCK_MONOTONIC) at
which the backend left: like flows, they survive the agent and not the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from lbagent.maps.flow_reader import Pair
from lbagent.maps.layout import FORMER_BACKEND_SHIFT, HOST_ORDER, STALE_BACKENDS
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC
from lbagent.model.stale_flows import KEEP
from lbagent.model.state import State, common_prefix_and_suffix

MAP = "lb_stale_backend"
SHOWN_S = 300.0  # so long the status shows that backends left early
_MARGIN_NS = 1_000_000_000  # a packet that selected the backend before it left has made its flow by then
_NS = 1_000_000_000
_WORD = 8
BackendsOf = Callable[[L3n4Addr], Iterable[Backend]]  # of a frontend as the maps have it


class StaleBackend(Struct):
    """A backend of one frontend that is gone."""

    backend: Backend
    since_ns: int  # CLOCK_MONOTONIC
    known_ns: int  # the same; of one that an earlier agent left, when this agent read it
    seconds: int = KEEP  # from `since_ns` on: the word of the Service


class StaleBackends:
    """Owner of lb_stale_backend. Use it inside the event loop."""

    def __init__(self, maps: LBMaps) -> None:
        """Begin without any; `restore` reads those of an earlier agent."""
        self._maps = maps
        self._kept: dict[L3n4Addr, dict[L3n4Addr, StaleBackend]] = {}  # by frontend, by backend
        self._last: tuple[SVC, ...] = ()
        self._places: dict[L3n4Addr, int] = {}  # of the frontends with such backends, in `_last`
        self._made: dict[L3n4Addr, tuple[SVC, tuple[Backend, ...], SVC]] = {}  # resolved SVC, its rest, both together
        self._written: dict[bytes, bytes] = {}
        self.evicted = 0  # backends that left early, for want of room
        self.evicted_at: float | None = None  # the last ones; time.monotonic

    def __len__(self) -> int:
        """Return how many backends are kept, each once."""
        return len(self.backends())

    def backends(self) -> set[L3n4Addr]:
        """Return the backends that are kept."""
        return {address for each in self._kept.values() for address in each}

    def each(self) -> Iterator[tuple[L3n4Addr, L3n4Addr, StaleBackend]]:
        """Yield frontend, backend, and what is known of them."""
        for frontend, found in self._kept.items():
            for address, kept in found.items():
                yield frontend, address, kept

    # --- restart ---

    def restore(
        self, service_ids: Mapping[int, L3n4Addr], backend_of: Callable[[L3n4Addr, int], Backend | None]
    ) -> None:
        """Read what an earlier agent left. Raises KernelError."""
        now = time.monotonic_ns()
        for key, value in self._maps.items(MAP):
            self._written[key] = value
            service, ident = _pair(key)
            frontend = service_ids.get(service)
            backend = backend_of(frontend, ident) if frontend is not None else None
            if frontend is not None and backend is not None:
                since = int.from_bytes(value, HOST_ORDER)
                self._keep(frontend, StaleBackend(_gone(backend), since, now))

    # --- a pass ---

    def add_to(self, state: State, backends_of: BackendsOf, *, retains: bool) -> State:
        """Return the State with the backends that are kept.

        `retains`: what an earlier agent left and no source has given yet is not decided on.
        """
        now = time.monotonic_ns()
        self._follow(state, backends_of, now)
        if not self._kept:
            self._made = {}
            return state
        services, made = list(state.services), {}
        for frontend in list(self._kept):
            at = self._places.get(frontend)
            svc = services[at] if at is not None else None
            if retains and (svc is None or svc.is_restored):
                continue
            rest = self._kept_of(frontend, svc, now)
            if svc is None or not rest:
                self._kept.pop(frontend, None)
                self._places.pop(frontend, None)
                continue
            known = self._made.get(frontend)
            if known is None or known[0] is not svc or known[1] != rest:
                known = svc, rest, replace(svc, slotless=svc.slotless + rest)
            services[at or 0] = known[2]
            made[frontend] = known
        self._made = made
        return State(state.generation, tuple(services))

    def _follow(self, state: State, backends_of: BackendsOf, now: int) -> None:
        """Find where the frontends are in this State, and which backends left those that are new or changed."""
        old, new = self._last, state.services
        prefix, suffix = common_prefix_and_suffix(old, new, state.delta)
        end, shift, kept = len(new) - suffix, len(new) - len(old), self._kept
        self._places = {
            frontend: at if at < prefix else at + shift
            for frontend, at in self._places.items()
            if at < prefix or at >= len(old) - suffix
        }
        left: list[tuple[int, SVC, list[Backend]]] = []
        for at in range(prefix, end):
            svc = new[at]
            if svc.frontend in kept:
                self._places[svc.frontend] = at
            if svc.stale_flows_s and not svc.is_restored and (gone := _left(svc, backends_of(svc.frontend))):
                left.append((at, svc, gone))
        self._last = new
        if not left:
            return
        names = {svc.name for _, svc, _ in left}
        without_slot = {(svc.name, b.address) for svc in new if svc.name in names for b in svc.slotless}
        for at, svc, gone in left:
            for backend in gone:  # one without a slot in another frontend of the Service is still in its slices
                if (svc.name, backend.address) not in without_slot and backend.address not in kept.get(
                    svc.frontend, ()
                ):
                    self._keep(svc.frontend, StaleBackend(_gone(backend), now, now))
                    self._places[svc.frontend] = at

    def _keep(self, frontend: L3n4Addr, kept: StaleBackend) -> None:
        self._kept.setdefault(frontend, {})[kept.backend.address] = kept

    def _kept_of(self, frontend: L3n4Addr, svc: SVC | None, now: int) -> tuple[Backend, ...]:
        """Return the backends that a frontend still keeps, and forget the others."""
        if svc is None or not svc.stale_flows_s:
            return ()
        found, has = self._kept[frontend], {backend.address for backend in svc.backends}
        for address, kept in list(found.items()):
            kept.seconds = svc.stale_flows_s
            if address in has or address in svc.ending or _is_over(kept, now):
                del found[address]
        return tuple([kept.backend for kept in found.values()])

    def due(self) -> float | None:
        """Return when the time of a backend is over, in seconds of time.monotonic."""
        ends = (kept.since_ns / _NS + kept.seconds for _, _, kept in self.each() if kept.seconds != KEEP)
        return min(ends, default=None)

    def evict(self, count: int, may_leave: Callable[[L3n4Addr], bool]) -> bool:
        """Forget the `count` backends that left first, of frontends that may lose them; return whether there was one."""
        oldest: dict[L3n4Addr, int] = {}
        for frontend, address, kept in self.each():
            if may_leave(frontend):
                oldest[address] = min(kept.since_ns, oldest.get(address, kept.since_ns))
        chosen = set(sorted(oldest, key=lambda address: oldest[address])[:count])
        self._forget(chosen)
        self.evicted += len(chosen)
        if chosen:
            self.evicted_at = time.monotonic()
        return bool(chosen)

    @property
    def problem(self) -> str:
        """Say for a while that backends left early; '' when none did."""
        if self.evicted_at is None or time.monotonic() - self.evicted_at > SHOWN_S:
            return ""
        return (
            f"{self.evicted} backends that are gone lost their flows earlier than stale-flows says: their ids were needed;"
            " raise --max-backends"
        )

    # --- the ends of flows ---

    def without_flows(self, flows: Mapping[int, int], began_s: float) -> dict[L3n4Addr, int]:
        """Return the backends, with their ids, of which a sweep that began then counted no flow."""
        began = int(began_s * _NS) - _MARGIN_NS
        ids: dict[L3n4Addr, int] = {}
        busy: set[L3n4Addr] = set()
        for _, address, kept in self.each():
            ident = self._ident(address)
            if ident is None or flows.get(ident) or max(kept.known_ns, kept.since_ns) > began:
                busy.add(address)
            else:
                ids[address] = ident
        return {address: ident for address, ident in ids.items() if address not in busy}

    def end(self, backends: Collection[L3n4Addr]) -> None:
        """Forget backends whose flows have ended."""
        self._forget(backends)

    def _forget(self, backends: Collection[L3n4Addr]) -> None:
        for found in self._kept.values():
            for address in found.keys() & set(backends):
                del found[address]

    # --- the map ---

    _ident: Callable[[L3n4Addr], int | None] = staticmethod(lambda _address: None)

    def use_ids(self, service: Callable[[L3n4Addr], int | None], backend: Callable[[L3n4Addr], int | None]) -> None:
        """Take the functions that return the id of a frontend, and of a backend."""
        self._service, self._ident = service, backend

    _service: Callable[[L3n4Addr], int | None] = staticmethod(lambda _frontend: None)

    def pairs(self) -> dict[Pair, L3n4Addr]:
        """Return (service id, backend id) of each frontend with such a backend, and the backend."""
        found: dict[Pair, L3n4Addr] = {}
        for frontend, address, _ in self.each():
            service, ident = self._service(frontend), self._ident(address)
            if service and ident:
                found[service, ident] = address
        return found

    def store(self) -> None:
        """Write those that are new, before the maps lose them otherwise. Raises KernelError."""
        wanted = self._wanted()
        rows = [(key, value) for key, value in wanted.items() if self._written.get(key) != value]
        if len(self._written) + len(rows) > STALE_BACKENDS:
            self.clean()
        if rows:
            self._maps.put_many(MAP, rows)
            self._written.update(rows)

    def clean(self) -> None:
        """Delete those that are no longer kept. Raises KernelError."""
        wanted = self._wanted()
        if keys := [key for key in self._written if key not in wanted]:
            self._maps.delete_many(MAP, keys)
            for key in keys:
                del self._written[key]

    def _wanted(self) -> dict[bytes, bytes]:
        rows: dict[bytes, bytes] = {}
        for frontend, address, kept in self.each():
            service, ident = self._service(frontend), self._ident(address)
            if service and ident:
                rows[_key(service, ident)] = kept.since_ns.to_bytes(_WORD, HOST_ORDER)
        if len(rows) <= STALE_BACKENDS:
            return rows
        newest = sorted(rows, key=lambda key: int.from_bytes(rows[key], HOST_ORDER), reverse=True)
        return {key: rows[key] for key in newest[:STALE_BACKENDS]}  # the others do not survive a restart


def _gone(backend: Backend) -> Backend:
    return replace(backend, id=0, state=BackendState.TERMINATING, gone=True)


def _left(svc: SVC, before: Iterable[Backend]) -> list[Backend]:
    """Return the backends that a frontend had, and has no longer."""
    had = [backend for backend in before if not backend.gone]
    if not had:
        return []
    has = {backend.address for backend in svc.backends}
    return [backend for backend in had if backend.address not in has and backend.address not in svc.ending]


def _is_over(kept: StaleBackend, now: int) -> bool:
    return kept.seconds != KEEP and now >= kept.since_ns + kept.seconds * _NS


def _key(service: int, ident: int) -> bytes:
    return (service << FORMER_BACKEND_SHIFT | ident).to_bytes(_WORD, HOST_ORDER)


def _pair(key: bytes) -> Pair:
    number = int.from_bytes(key, HOST_ORDER)
    return number >> FORMER_BACKEND_SHIFT, number & ((1 << FORMER_BACKEND_SHIFT) - 1)
