"""Which backends leave a frontend of UDP although other frontends keep them: flows to them choose again. Pure.

A backend that is still in the slices of a Service has not left its frontends: it is in a group of the frontend's SVC, or without a
slot in that of another frontend of the Service (a port was renamed). Pairs are (service id, backend id), as flows have them: a
extra SNAT address of a backend has an id of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbagent.maps.flow_reader import Pair
from lbagent.model.address import L4Type
from lbagent.model.extra_snat_sources import extra_snat_stride
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.targets.bpf.extra_snat_paths import ids_of, number_of
from lbagent.targets.bpf.shadow import Shadow, ShadowFrontend
from lbagent.targets.bpf.steps import FrontendChange, Plan


def members(svc: SVC, state: State) -> set[int]:
    """Return the ids of the backends that flows through a frontend may have."""
    of_service = state.by_name.get(svc.name, ())
    return _ids(svc) | {backend.id for other in of_service for backend in other.slotless}


def left_pairs(plan: Plan, state: State, shadow: Shadow) -> Iterator[Pair]:
    """Yield what left with this plan, which was applied: State and Shadow are as the maps are now."""
    for change, svc in _changes(plan):
        if change.old is None:
            continue
        service, had = _backends_of(change.old)
        if service != svc.id or had.issubset(_ids(svc)):
            continue
        for ident in had - members(svc, state):
            if shadow.refs.get(ident):  # else it is gone for every frontend, and no flow goes to it
                yield from ((service, each) for each in ids_of(shadow, ident))


def coming_pairs(plan: Plan, state: State, shadow: Shadow, *, every_protocol: bool = False) -> set[Pair]:
    """Return what the frontends of UDP, or of all protocols, that change have after this plan."""
    return {
        (svc.id, each)
        for _, svc in _changes(plan, every_protocol=every_protocol)
        for ident in members(svc, state)
        for each in ids_of(shadow, ident)
    }


def stale_pairs(pairs: Iterable[Pair], state: State, shadow: Shadow) -> Iterator[Pair]:
    """Yield those pairs of flows whose backend lives and is not of the frontend. One that is gone ends its flows itself."""
    frontends = {svc.id: svc for svc in state.services if _is_udp(svc)}
    stride = extra_snat_stride(shadow.sizes.backends)
    for service, ident in pairs:
        number = number_of(shadow, ident) if ident >= stride else 0
        backend, svc = ident - number * stride, frontends.get(service)
        if svc is not None and shadow.refs.get(backend) and backend not in members(svc, state):
            yield service, ident


def _changes(plan: Plan, *, every_protocol: bool = False) -> Iterator[tuple[FrontendChange, SVC]]:
    for owner, change in enumerate(plan.changes):
        svc = change.svc
        if svc is not None and (every_protocol or _is_udp(svc)) and not svc.is_restored and owner not in plan.refused:
            yield change, svc


def _is_udp(svc: SVC) -> bool:
    return svc.frontend.protocol is L4Type.UDP and not svc.wildcard


def _ids(svc: SVC) -> set[int]:
    return {backend.id for backend in svc.backends}


def _backends_of(old: ShadowFrontend) -> tuple[int, set[int]]:
    """Return the service id of a frontend, and the backends that its flows may have."""
    if isinstance(old, SVC):
        return old.id, _ids(old)
    entries = old.entries
    return entries.id, entries.backend_ids()
