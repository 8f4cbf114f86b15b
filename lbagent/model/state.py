"""State: an immutable snapshot of the wanted contents of the maps, with look-ups by frontend, name and backend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress, count
from operator import is_not

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import Backend
from lbagent.model.service import SVC, ServiceName


class StateDelta(Struct, frozen=True, gc=False):
    """How `after` was made from `before`: `prefix` and `suffix` SVCs at the two ends are the same objects."""

    before: tuple[SVC, ...]
    after: tuple[SVC, ...]
    prefix: int
    suffix: int


class State(Struct, frozen=True, gc=False, eq=False):
    """All services in dump order. `generation` counts applied States.

    The indexes are built on first use and kept: a change of one service among 10,000 must not pay for an index that is never
    read. Do not pass the underscored fields. `delta` saves the plan from reading every service.
    """

    generation: int = 0
    services: tuple[SVC, ...] = ()
    delta: StateDelta | None = None
    _by_frontend: dict[L3n4Addr, SVC] | None = None
    _by_name: dict[ServiceName, tuple[SVC, ...]] | None = None
    _backends: dict[L3n4Addr, Backend] | None = None
    _with_ranges: tuple[SVC, ...] | None = None

    def __eq__(self, other: object) -> bool:
        """Compare the contents, not the indexes."""
        if not isinstance(other, State):
            return NotImplemented
        return self.generation == other.generation and self.services == other.services

    def __ne__(self, other: object) -> bool:
        """Return the opposite of `==`: msgspec's own would compare identities."""
        return not self == other

    def __hash__(self) -> int:
        """Hash the contents."""
        return hash((self.generation, self.services))

    def __repr__(self) -> str:
        """Stay on one line."""
        return f"State(generation={self.generation}, {len(self.services)} frontends)"

    def ranges_of(self, frontend: L3n4Addr) -> list[SVC]:
        """Return the frontends (of both scopes) with a range that has this port of the address."""
        if self._with_ranges is None:
            force_setattr(self, "_with_ranges", tuple([svc for svc in self.services if svc.frontend.last_port]))
        return [
            svc
            for svc in self._with_ranges or ()
            if svc.frontend.has_port(frontend.port)
            and svc.frontend.address == frontend.address
            and svc.frontend.protocol is frontend.protocol
        ]

    @property
    def by_frontend(self) -> dict[L3n4Addr, SVC]:
        """Each frontend by address, port, protocol and scope. Do not change it."""
        if self._by_frontend is None:
            force_setattr(self, "_by_frontend", {svc.frontend: svc for svc in self.services})
        return self._by_frontend or {}

    @property
    def by_name(self) -> dict[ServiceName, tuple[SVC, ...]]:
        """The frontends of each Service, in order; wildcard entries under the Service that added them. Do not change it."""
        if self._by_name is None:
            index: dict[ServiceName, list[SVC]] = {}
            for svc in self.services:
                index.setdefault(svc.name, []).append(svc)
            force_setattr(self, "_by_name", {name: tuple(rows) for name, rows in index.items()})
        return self._by_name or {}

    def inside_rows(self) -> list[L3n4Addr]:
        """Return the frontends of scope INTERNAL."""
        return [svc.frontend for svc in self.services if svc.frontend.scope is Scope.INTERNAL]

    @property
    def backends(self) -> dict[L3n4Addr, Backend]:
        """Each backend once, in the order of first use; the most alive state where frontends differ. Do not change it."""
        if self._backends is None:
            index: dict[L3n4Addr, Backend] = {}
            for svc in self.services:
                for group in (svc.selectable, svc.unselectable, svc.slotless):
                    for backend in group:
                        known = index.setdefault(backend.address, backend)
                        if (backend.gone, backend.state) < (known.gone, known.state):
                            index[backend.address] = backend
            force_setattr(self, "_backends", index)
        return self._backends or {}


def common_prefix_and_suffix(
    old: Sequence[SVC], new: Sequence[SVC], delta: StateDelta | None = None
) -> tuple[int, int]:
    """Return how many SVCs are the same objects at the start, and at the end; the two parts may not overlap.

    `delta` is used when it is of these two; else every service is compared, without a Python step for each.
    """
    if delta is not None and delta.before is old and delta.after is new:
        return delta.prefix, delta.suffix
    prefix = _common_start(old, new)
    return prefix, _common_start(old[prefix:][::-1], new[prefix:][::-1])


def names_changed(old: State, new: State) -> set[ServiceName]:
    """Return the Services of which a frontend is not the same object in both."""
    prefix, suffix = common_prefix_and_suffix(old.services, new.services, new.delta)
    middles = (state.services[prefix : len(state.services) - suffix] for state in (old, new))
    return {svc.name for middle in middles for svc in middle}


def next_generation(last: State, new: State) -> int:
    """Return the generation of the State that follows `last`: a new one when any service is not equal."""
    old, services = last.services, new.services
    prefix, suffix = common_prefix_and_suffix(old, services, new.delta)
    return last.generation + (old[prefix : len(old) - suffix] != services[prefix : len(services) - suffix])


def without_backends(state: State, addresses: Collection[L3n4Addr]) -> State:
    """Return the State in which no frontend has these backends; the same object without any address."""
    if not addresses:
        return state
    return State(state.generation, tuple([_without(svc, addresses) for svc in state.services]))


def _without(svc: SVC, addresses: Collection[L3n4Addr]) -> SVC:
    if not (svc.stale_flows_s or any(backend.address in addresses for backend in svc.backends)):
        return svc
    groups = [
        tuple([backend for backend in group if backend.address not in addresses])
        for group in (svc.selectable, svc.unselectable, svc.slotless)
    ]
    ending = svc.ending.union(addresses) if svc.stale_flows_s else svc.ending
    return replace(svc, selectable=groups[0], unselectable=groups[1], slotless=groups[2], ending=ending)


def _common_start(one: Sequence[SVC], two: Sequence[SVC]) -> int:
    return next(compress(count(), map(is_not, one, two)), min(len(one), len(two)))
