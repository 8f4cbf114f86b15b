"""Desired State x Shadow -> Plan: the least writes, in an order that never shows half a service. Pure.

Incremental: what is the same SVC object as in the State planned before costs one comparison of references. A Shadow just
read from the maps (restart, resync) is compared whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Protocol

from lbagent.errors import LbError
from lbagent.maps import frontend_codec, prefilter
from lbagent.maps.frontend_codec import NO_ENTRIES, FrontendEntries
from lbagent.maps.layout import U16, U32
from lbagent.maps.lbmaps import service_counter
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import MapRole
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_whole
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.model.service import SVC
from lbagent.model.state import State, StateDelta, common_prefix_and_suffix
from lbagent.targets.bpf.backends import BackendPlanner
from lbagent.targets.bpf.capacity import Fit, MapCapacity, Undecided
from lbagent.targets.bpf.map_shares import counting, deferred_wants, fit_without_shares
from lbagent.targets.bpf.ranges import range_steps, range_steps_in_full_map
from lbagent.targets.bpf.shadow import Shadow, map_entries, strays_of
from lbagent.targets.bpf.steps import NO_OWNER, FrontendChange, Phase, Plan, Steps

_NOTHING = Fit(None, NO_ENTRIES)
PathLookup = Callable[[Backend], PathInfo]  # how a backend is reached


class PathProvider(Protocol):
    """How backends are reached now (targets/bpf/network_follower.py)."""

    def path(self, backend: Backend) -> PathInfo:
        """Return the path to a backend."""

    def snat_addresses(self) -> Iterable[bytes]:
        """Return the addresses this node translates to."""

    async def resolve_neighbours(self) -> bool:
        """Wait a moment until the paths requested last can be used; return whether they must be requested again."""

    def paths_planned(self) -> None:
        """Take note that paths were requested."""


def plan(desired: State, shadow: Shadow, paths: PathLookup, snat: Iterable[bytes] | None = None) -> Plan:
    """Return how to get from what the maps hold to `desired`, whose ids are assigned.

    `paths` answers how a backend is reached (net/paths.py); `snat` are the addresses this node translates to, None to
    leave them. A new frontend that does not fit into the maps is in `refused`; what is missing of others is in `shortages`.
    """
    return run_whole(planning(desired, shadow, paths, snat))


def planning(
    desired: State, shadow: Shadow, paths: PathLookup, snat: Iterable[bytes] | None = None
) -> Cooperative[Plan]:
    """Do what `plan` does. The Shadow must not be changed before the end."""
    waiting = deferred_wants(desired, shadow)
    out = None
    if fit_without_shares(shadow, waiting):
        out = yield from _planning(desired, shadow, paths, snat, MapCapacity(shadow, waiting=waiting))
    if out is None:
        shares = yield from counting(desired, shadow)
        out = yield from _planning(desired, shadow, paths, snat, MapCapacity(shadow, shares))
    assert out is not None
    return out


def _planning(
    desired: State, shadow: Shadow, paths: PathLookup, snat: Iterable[bytes] | None, capacity: MapCapacity
) -> Cooperative[Plan | None]:
    """Do what `planning` does; None where shares must be counted first."""
    steps = Steps()
    changes = _changes(desired, shadow)
    out = Plan(changes, [], {}, desired.services, full_sync=shadow.needs_full_sync)
    backends = BackendPlanner(shadow, paths, steps)
    bits: set[int] = set()
    ranges = _PortSteps(steps)
    again: list[int] = []  # changes that may have more when each namespace has its part of the room
    for owner in chain(range(len(changes)), again):
        change = changes[owner]
        old = map_entries(change.old) if change.old is not None else NO_ENTRIES
        fit = capacity.fit(change.svc, old) if change.svc is not None else _NOTHING
        if fit is Undecided.COUNT:
            return None
        if fit is Undecided.LATER:
            again.append(owner)
            continue
        if isinstance(fit, LbError):
            out.refused[owner] = fit
            continue
        new = fit.entries
        change.svc = fit.svc
        if fit.shortage:
            out.shortages[owner] = fit.shortage
        if not owner % BETWEEN_YIELDS:
            yield
        backends.count(owner, change, old)
        if new.id and new.id != old.id:
            steps.at(Phase.COUNTER_ZERO, "lb_metrics").add(owner, U32.pack(service_counter(new.id)))
        _service_steps(steps, owner, change.frontend, old, fit, shadow.sizes.maglev_size)
        ranges.add(owner, change.frontend, old.ports, new.ports)
        if strays := strays_of(change.old):
            _stray_steps(steps, owner, new, strays, shadow)
        if change.svc is not None:
            bits.add(prefilter.vip_bit(change.frontend.address))
    ranges.finish()
    capacity.explain()
    out.room, out.share_room = capacity.room(), capacity.share_room()
    out.refs = yield from backends.planning()
    if snat is not None:
        out.snat_bits = frozenset(bit for address in snat for bit in prefilter.snat_bits(address))
    _filter_steps(steps, shadow, [*bits, *backends.filter_bits(), *(out.snat_bits or ())])
    _orphan_steps(steps, shadow)
    out.steps = steps.ordered()
    return out


def plan_paths(shadow: Shadow, backends: Iterable[Backend], paths: PathLookup) -> Plan:
    """Return the path writes alone, for backends (with ids) that may be reached differently now; no other entry is planned."""
    steps = Steps()
    planner = BackendPlanner(shadow, paths, steps)
    for backend in backends:
        planner.path_only(backend)
    _filter_steps(steps, shadow, planner.filter_bits())
    return Plan([], steps.ordered(), {})


# --- what changed ---


def _changes(desired: State, shadow: Shadow) -> list[FrontendChange]:
    wanted: dict[L3n4Addr, SVC] = {}
    if shadow.needs_full_sync:
        wanted.update(desired.by_frontend)
        gone = [frontend for frontend in shadow.frontends if frontend not in wanted]
    else:
        wanted, gone = differences(shadow.services, desired.services, desired.delta)
        _add_dirty(desired, shadow, wanted, gone)
    known = shadow.frontends
    changes = [FrontendChange(frontend, known.get(frontend), svc) for frontend, svc in wanted.items()]
    return changes + [FrontendChange(frontend, known[frontend], None) for frontend in gone if frontend in known]


def differences(
    old: Sequence[SVC], new: Sequence[SVC], delta: StateDelta | None = None
) -> tuple[dict[L3n4Addr, SVC], list[L3n4Addr]]:
    """Return (frontends that are new or not the same object, frontends that are gone); no State has one twice."""
    prefix, suffix = common_prefix_and_suffix(old, new, delta)
    before, after = old[prefix : len(old) - suffix], new[prefix : len(new) - suffix]
    known, still = set(map(id, before)), set(map(id, after))
    left = dict.fromkeys(svc.frontend for svc in before if id(svc) not in still)
    wanted = {svc.frontend: svc for svc in after if id(svc) not in known}
    return wanted, [frontend for frontend in left if frontend not in wanted]


def _add_dirty(desired: State, shadow: Shadow, wanted: dict[L3n4Addr, SVC], gone: list[L3n4Addr]) -> None:
    """Add what must be planned again; room goes to frontends that are served, then to older Services."""
    already = set(gone)
    again: list[SVC] = []
    for frontend in shadow.dirty:
        svc = desired.by_frontend.get(frontend)
        if svc is not None:
            again.append(svc)
        elif frontend not in already:
            gone.append(frontend)
    served = shadow.frontends
    again.sort(
        key=lambda svc: (svc.frontend not in served, svc.created, svc.name, svc.frontend.address, svc.frontend.port)
    )
    wanted.update({svc.frontend: svc for svc in again})


# --- one frontend ---


def _service_steps(
    steps: Steps, owner: int, frontend: L3n4Addr, old: FrontendEntries, fit: Fit, table_size: int
) -> None:
    family, new = frontend.family, fit.entries
    if old.slots:
        if old.slots != new.slots:
            _slot_steps(steps, owner, frontend, old, new)
    else:
        _new_slot_steps(steps, owner, frontend, new)
    if old.has_table or new.members:
        _table_steps(steps, owner, family_map(family, "maglev"), old, new, table_size)
    if old.affinity or new.affinity:
        _affinity_steps(steps, owner, old, new, leave_first=fit.matches_first)
    if old.ranges or new.ranges:  # verdicts are of ranges
        if fit.ranges_first:
            range_steps_in_full_map(steps, owner, frontend, old, new)
        else:
            range_steps(steps, owner, family, old, new)
    name, ident = family_map(family, "reverse_nat"), U32.pack
    if new.reverse and (new.id != old.id or new.reverse != old.reverse):
        steps.at(Phase.REVERSE_IN, name).add(owner, ident(new.id), new.reverse)
    if old.reverse and new.id != old.id:
        steps.at(Phase.REVERSE_OUT, name).add(owner, ident(old.id), bytes(len(old.reverse)))


class _PortSteps:
    """Plans the prefixes of ranges of ports, which depend on their frontends alone."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._kept: set[tuple[Family, bytes]] = set()
        self._leaving: list[tuple[int, Family, frozenset[bytes]]] = []

    def add(self, owner: int, frontend: L3n4Addr, old: frozenset[bytes], new: frozenset[bytes]) -> None:
        """Plan what comes; `finish` plans what leaves."""
        if not (old or new):
            return
        family, value = frontend.family, frontend_codec.port_range_value(frontend)
        for key in sorted(new - old):
            self._steps.at(Phase.PORTS_IN, family_map(family, "port_range")).add(owner, key, value)
        self._kept.update((family, key) for key in new)
        self._leaving.append((owner, family, old - new))

    def finish(self) -> None:
        """Plan what leaves. A prefix that another range took over leads there, and stays."""
        for owner, family, keys in self._leaving:
            for key in sorted(keys):
                if (family, key) not in self._kept:
                    self._steps.at(Phase.PORTS_OUT, family_map(family, "port_range")).add(owner, key)


def _slot_steps(steps: Steps, owner: int, frontend: L3n4Addr, old: FrontendEntries, new: FrontendEntries) -> None:
    name = family_map(frontend.family, "service")
    head, tail = frontend_codec.service_key_parts(frontend)
    before, after = _selectable(old), _selectable(new)
    have, number, slot_in = old.slots, U16.pack, steps.at(Phase.SLOT_IN, name)
    for slot, value in new.slots.items():
        if have.get(slot) == value:
            continue
        step = slot_in
        if not slot:
            step = steps.at(Phase.MASTER_IN, name)
        elif after < slot <= before:
            step = steps.at(Phase.SLOT_TAIL, name)
        step.add(owner, head + number(slot) + tail, value)
    for slot in have:
        if slot not in new.slots:
            steps.at(Phase.SLOT_OUT if slot else Phase.MASTER_OUT, name).add(owner, head + number(slot) + tail)


def _new_slot_steps(steps: Steps, owner: int, frontend: L3n4Addr, new: FrontendEntries) -> None:
    """Do what `_slot_steps` does for a frontend that has none."""
    name = family_map(frontend.family, "service")
    head, tail = frontend_codec.service_key_parts(frontend)
    slots = dict(new.slots)
    if master := slots.pop(0, b""):
        steps.at(Phase.MASTER_IN, name).add(owner, head + bytes(2) + tail, master)
    if slots:
        keys = head + (tail + head).join(map(U16.pack, slots)) + tail
        steps.at(Phase.SLOT_IN, name).extend([owner] * len(slots), keys, b"".join(slots.values()))


def _selectable(rows: FrontendEntries) -> int:
    """Return the COUNT of a master, 0 without one."""
    master = rows.slots.get(0)
    return frontend_codec.selectable_count(master) if master else 0


def _table_steps(steps: Steps, owner: int, name: str, old: FrontendEntries, new: FrontendEntries, size: int) -> None:
    if new.members:
        same = new.id == old.id and (
            old.members == new.members
            if old.table is None
            else old.table == frontend_codec.maglev_table(new.members, size)
        )
        if not same:
            step = steps.at(Phase.TABLE_IN, name)
            step.add(owner, U32.pack(new.id))
            step.members.append(new.members)
    if old.has_table and (not new.has_table or new.id != old.id):
        steps.at(Phase.TABLE_OUT, name).add(owner, U32.pack(old.id))


def _affinity_steps(steps: Steps, owner: int, old: FrontendEntries, new: FrontendEntries, *, leave_first: bool) -> None:
    had = frozenset(frontend_codec.affinity_match_key(old.id, ident) for ident in old.affinity)
    wanted = frozenset(frontend_codec.affinity_match_key(new.id, ident) for ident in new.affinity)
    for key in sorted(wanted - had):
        steps.at(Phase.AFFINITY_IN, "lb_affinity_match").add(owner, key, frontend_codec.PRESENT)
    out = Phase.AFFINITY_ROOM if leave_first else Phase.AFFINITY_OUT
    for key in sorted(had - wanted):
        steps.at(out, "lb_affinity_match").add(owner, key)


def _stray_steps(
    steps: Steps, owner: int, new: FrontendEntries, strays: Iterable[tuple[str, bytes]], shadow: Shadow
) -> None:
    """Take away what a change of the id that broke off left under an id that the frontend does not get."""
    affinity = {frontend_codec.affinity_match_key(new.id, ident) for ident in new.affinity}
    for name, key in sorted(strays):
        role = shadow.specs[name].role
        if role is MapRole.AFFINITY_MATCH:
            if key not in affinity:
                steps.at(Phase.AFFINITY_OUT, name).add(owner, key)
        elif role is MapRole.MAGLEV:
            if key != U32.pack(new.id) or not new.members:
                steps.at(Phase.TABLE_OUT, name).add(owner, key)
        elif key != U32.pack(new.id):
            steps.at(Phase.REVERSE_OUT, name).add(owner, key, bytes(shadow.specs[name].value_size))


# --- what belongs to no frontend ---


def _filter_steps(steps: Steps, shadow: Shadow, bits: Iterable[int]) -> None:
    missing = shadow.unset(bits)
    steps.at(Phase.FILTER_IN, "lb_filter").extend([NO_OWNER] * len(missing), array("I", missing).tobytes())


def _orphan_steps(steps: Steps, shadow: Shadow) -> None:
    for name, key in shadow.orphans:
        phase, value, spec = Phase.ORPHAN_OUT, b"", shadow.specs[name]
        if spec.role is MapRole.MAGLEV:
            phase = Phase.ORPHAN_TABLE_OUT
        elif spec.role is MapRole.REVERSE_NAT:
            phase, value = Phase.ORPHAN_REVERSE_OUT, bytes(spec.value_size)
        steps.at(phase, name).add(NO_OWNER, key, value)
