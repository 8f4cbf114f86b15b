"""The part of a plan that services share: backend rows, path records, and the filter bits of local backends. Pure.

A backend exists while any service names it; its state is the most alive one any of them gives it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import cast

from lbagent.maps import backend_codec
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.layout import U32, PathFlag
from lbagent.maps.lbmaps import backend_counter
from lbagent.maps.map_names import family_map
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import Cooperative
from lbagent.model.extra_snat_sources import extra_snat_stride
from lbagent.model.family import Family
from lbagent.model.path_info import PathInfo
from lbagent.model.service import SVC
from lbagent.model.state import State
from lbagent.targets.bpf.extra_snat_paths import extra_snat_records, live_extra_snat_ids, path_record
from lbagent.targets.bpf.shadow import PIN, PartialFrontend, Shadow, ShadowFrontend, is_selectable, reference, state_of
from lbagent.targets.bpf.steps import NO_OWNER, FrontendChange, Owner, Phase, Steps

_NOT_COUNTED: tuple[int, Backend | None] = (0, None)
IPV4_BYTES = Family.IPV4.address_bytes
BACKENDS_BETWEEN_YIELDS = 64  # backends
_SELECTABLE = int(PathFlag.SELECTABLE)


def reference_counts(entry: ShadowFrontend | None) -> dict[int, tuple[int, Backend | None]]:
    """Return what an entry adds to the reference count of each backend id, and the backend as the entry has it."""
    if entry is None:
        return {}
    if isinstance(entry, PartialFrontend):
        return dict.fromkeys(entry.pins, (PIN, None))
    out: dict[int, tuple[int, Backend | None]] = {}
    for group, chosen in ((entry.selectable, True), (entry.unselectable, False), (entry.slotless, False)):
        for backend in group:
            out[backend.id] = (reference(backend.state, chosen), backend)
    return out


class _FamilyMaps:
    """Maps, offsets and steps of the backends of one family; looked up once, not for each of 100,000."""

    def __init__(self, shadow: Shadow, family: Family, steps: Steps) -> None:
        self.family = family
        self.backend_rows, self.paths = shadow.backend_rows[family], shadow.paths[family]
        size = self.paths.record
        self.flags_at, self.gen_at = backend_codec.FLAGS_AT[size], backend_codec.GEN_AT[size]
        self.meta_at = backend_codec.META_AT[size]
        self.backend_map, self.path_map = family_map(family, "backend"), family_map(family, "path")
        self.unused = max(self.backend_rows.end, self.paths.end)  # from this id on there is nothing in either
        self.no_row = bytes(self.backend_rows.record)
        self.new: list[int] = []  # ids of backends that are planned many at a time
        self.records = bytearray()  # path records as they shall be, side by side: for their bits of the prefilter
        self.backend_in = steps.at(Phase.BACKEND_IN, self.backend_map)
        self.path_body = steps.at(Phase.PATH_BODY, self.path_map)
        self.path_in = steps.at(Phase.PATH_IN, self.path_map)


class BackendPlanner:
    """Takes the changes one by one (`count`), then plans every backend they touch (`planning`)."""

    def __init__(self, shadow: Shadow, paths: Callable[[Backend], PathInfo], steps: Steps) -> None:
        self._shadow, self._paths, self._steps = shadow, paths, steps
        self._families = {family: _FamilyMaps(shadow, family, steps) for family in Family}
        self._four, self._six = self._families[Family.IPV4], self._families[Family.IPV6]
        self._refs: dict[int, int] = {}
        self._seen: dict[int, Backend] = {}  # as the new services have it
        self._users: dict[int, Owner] = {}  # changes that need it
        self._former_users: dict[int, Owner] = {}  # changes whose slots may name it until they are applied
        self._records = backend_codec.PathRecords()

    def count(self, owner: int, change: FrontendChange, old: FrontendEntries) -> None:
        """Add a change, which replaces these entries, to the reference counts of the backends it touches."""
        before = reference_counts(change.old)
        if isinstance(change.old, PartialFrontend):
            just_read = old.backend_ids() - before.keys()  # from the maps: its backends are not counted yet
            before.update(dict.fromkeys(just_read, _NOT_COUNTED))
        if change.svc is not None:
            self._add(owner, change.svc, before)
        for ident, (weight, _) in before.items():
            self._refs[ident] = self._now(ident) - weight
            self._former_users[ident] = _also(self._former_users.get(ident), owner)

    def _add(self, owner: int, svc: SVC, before: dict[int, tuple[int, Backend | None]]) -> None:
        refs, users, known = self._refs, self._users, self._shadow.refs
        for group, chosen in ((svc.selectable, True), (svc.unselectable, False), (svc.slotless, False)):
            if not before and self._add_unknown(owner, group, chosen):
                continue
            for backend in group:
                ident, weight = backend.id, reference(backend.state, chosen)
                found = before.pop(ident, None) if before else None
                old_weight = 0
                if found is not None:
                    old_weight = found[0]
                    if old_weight == weight and found[1] == backend:
                        continue
                    self._former_users[ident] = _also(self._former_users.get(ident), owner)
                now = refs[ident] if ident in refs else known.get(ident, 0)
                refs[ident] = weight if now == old_weight else now - old_weight + weight  # one object for equal refs
                self._seen[ident] = backend
                users[ident] = _also(users[ident], owner) if ident in users else owner

    def _add_unknown(self, owner: int, group: Sequence[Backend], chosen: bool) -> bool:
        """Count backends of one state that nothing counted before, without a step for each; return whether they are such."""
        refs, idents = self._refs, [backend.id for backend in group]
        states = {backend.state for backend in group}
        if len(states) != 1 or min(idents) < self._shadow.refs.end or not refs.keys().isdisjoint(idents):
            return False
        refs.update(dict.fromkeys(idents, reference(states.pop(), chosen)))
        self._seen.update(zip(idents, group, strict=True))
        self._users.update(dict.fromkeys(idents, owner))
        return True

    def _now(self, ident: int) -> int:
        found = self._refs.get(ident)
        return self._shadow.refs.get(ident, 0) if found is None else found

    def planning(self) -> Cooperative[dict[int, int]]:
        """Add the steps of every backend touched; return the new reference counts."""
        unused = min(maps.unused for maps in self._families.values())
        for number, (ident, refs) in enumerate(self._refs.items()):
            if not refs:
                for maps in self._families.values():
                    self._remove(maps, ident)
            elif ident < unused or not self._is_new(ident):
                self._keep(ident, refs)
            if number % BACKENDS_BETWEEN_YIELDS == 0:
                yield
        for maps in self._families.values():
            for at in range(0, len(maps.new), BACKENDS_BETWEEN_YIELDS):
                self._add_new(maps, maps.new[at : at + BACKENDS_BETWEEN_YIELDS])
                yield
        if self._shadow.needs_full_sync and self._shadow.prune:
            for maps, ident in self._unreferenced():
                self._remove(maps, ident)
        return self._refs

    def filter_bits(self) -> list[int]:
        """Return the filter bits that the backends planned so far need, some more than once."""
        return [
            bit
            for maps in self._families.values()
            for bit in backend_codec.filter_bits_of_each(maps.records, maps.paths.record, once=True)
        ]

    def _is_new(self, ident: int) -> bool:
        """Return whether a backend comes to an id that nothing ever had, and note it."""
        backend = self._seen.get(ident)
        if backend is None or ident < (maps := self._maps_of(backend)).unused:
            return False
        maps.new.append(ident)
        return True

    def _add_new(self, maps: _FamilyMaps, idents: list[int]) -> None:
        """Plan all entries of backends that have none: what `_keep` does of one that has, without a look for each."""
        backends, states = [self._seen[ident] for ident in idents], [_state(self._refs[ident]) for ident in idents]
        infos = list(map(self._paths, backends))
        if self._shadow.extra_snat_paths or any(info.extra_snat for info in infos):
            for ident in idents:
                self._keep(ident, self._refs[ident])
            return
        counted = cast(list[tuple[BackendState, bool]], states)  # no None: the plan has counted their states
        rows, records = backend_codec.new_entries(self._records, zip(backends, infos, counted, strict=True))
        owners, keys, joined = [self._users[ident] for ident in idents], array("I", idents).tobytes(), b"".join(records)
        counters = array("I", map(backend_counter, idents)).tobytes()
        self._steps.at(Phase.COUNTER_ZERO, "lb_metrics").extend(owners, counters)
        maps.backend_in.extend(owners, keys, b"".join(rows))
        maps.path_body.extend(owners, keys, joined)
        maps.path_in.extend(owners, keys, joined)
        maps.records += joined

    def _keep(self, ident: int, refs: int) -> None:
        backend = self._seen.get(ident)
        state, selectable = _state(refs)
        if state is None:
            return  # only pinned: as it is until the service that pins it gets through
        maps = self._maps_of(backend) if backend else self._maps_with(ident)
        old = maps.backend_rows.get(ident)
        known = old != maps.no_row
        if backend is None and not known:
            return  # its row was never written: the service that needs it is planned again
        address = backend.address if backend else backend_codec.backend_of(old)[0]
        value = backend_codec.backend_value(address, state)
        if value != old:
            down = not selectable and known
            owner, key = self._owner(ident, down), U32.pack(ident)
            if not known:
                self._steps.at(Phase.COUNTER_ZERO, "lb_metrics").add(owner, U32.pack(backend_counter(ident)))
            step = self._steps.at(Phase.BACKEND_DOWN, maps.backend_map) if down else maps.backend_in
            step.add(owner, key, value)
        self._path(maps, ident, backend, selectable)

    def _maps_of(self, backend: Backend) -> _FamilyMaps:
        return self._four if len(backend.address.address) == IPV4_BYTES else self._six

    def _maps_with(self, ident: int) -> _FamilyMaps:
        four = self._families[Family.IPV4]
        return self._families[Family.IPV6] if four.backend_rows.is_clear(ident) else four

    def _owner(self, ident: int, down: bool) -> Owner:
        """Return the changes that fail with an entry: for one that is taken away those that may still need it."""
        first, second = (self._former_users, self._users) if down else (self._users, self._former_users)
        found = first.get(ident)
        return second.get(ident, NO_OWNER) if found is None else found

    def _path(self, maps: _FamilyMaps, ident: int, backend: Backend | None, selectable: bool) -> None:
        old, flags_at = maps.paths.get(ident), maps.flags_at
        if backend is None:
            if not backend_codec.is_live(old):
                return
            new = backend_codec.with_selectable(old, flags_at, selectable)
            self._store(maps, ident, ident, old, new)
            for other, record in live_extra_snat_ids(self._shadow, maps.family, ident):
                if not selectable:  # the next plan with the backend lets new flows in again
                    self._store(maps, ident, other, record, backend_codec.with_selectable(record, flags_at, False))
            return
        info = self._paths(backend)
        new = self._records.make(backend, info, old[maps.gen_at], selectable=selectable)
        if new != old:
            new = path_record(backend, info, old, selectable=selectable)
        maps.records += new
        if new != old:
            self._store(maps, ident, ident, old, new)
        if info.extra_snat or self._shadow.extra_snat_paths:
            self._extra_snat_paths(maps, ident, new, info)

    def _extra_snat_paths(self, maps: _FamilyMaps, ident: int, new: bytes, info: PathInfo) -> None:
        for other, record, wanted in extra_snat_records(self._shadow, maps.family, ident, new, info):
            if not backend_codec.is_live(record):
                self._steps.at(Phase.COUNTER_ZERO, "lb_metrics").add(
                    self._owner(ident, False), U32.pack(backend_counter(other))
                )
            self._store(maps, ident, other, record, wanted)

    def _store(self, maps: _FamilyMaps, ident: int, number: int, old: bytes, new: bytes) -> None:
        """Plan the record at `number` of the backend `ident`. Flows of the old record end where the new one is another's."""
        flags_at, gen_at, meta_at = maps.flags_at, maps.gen_at, maps.meta_at
        if new == old:
            return
        key, owner = U32.pack(number), self._owner(ident, False)
        if (
            backend_codec.is_live(old)
            and backend_codec.is_live(new)
            and backend_codec.endpoint(old) != backend_codec.endpoint(new)
        ):
            new = new[:gen_at] + bytes(((old[gen_at] + 1) & 0xFF,)) + new[gen_at + 1 :]
            self._steps.at(Phase.PATH_RESET, maps.path_map).add(owner, key, backend_codec.path_tombstone(old))
        if new[:meta_at] != old[:meta_at]:
            maps.path_body.add(owner, key, new)
        if new[meta_at:] != old[meta_at:]:
            if old[flags_at] & _SELECTABLE and not new[flags_at] & _SELECTABLE:
                self._steps.at(Phase.PATH_OUT, maps.path_map).add(self._owner(ident, True), key, new)
            else:
                maps.path_in.add(owner, key, new)

    def path_only(self, backend: Backend) -> None:
        """Plan the path record of a live backend again, everything but how it is reached staying as it is."""
        maps = self._maps_of(backend)
        old = maps.paths.get(backend.id)
        flags = old[maps.flags_at]
        if backend_codec.is_live(old) and backend_codec.path_of(old).address == backend.address.address:
            self._path(maps, backend.id, backend, bool(flags & _SELECTABLE))

    def _remove(self, maps: _FamilyMaps, ident: int) -> None:
        record = maps.paths.get(ident)
        key, owner = U32.pack(ident), self._former_users.get(ident, NO_OWNER)
        if backend_codec.is_live(record):
            self._steps.at(Phase.PATH_OUT, maps.path_map).add(owner, key, backend_codec.path_tombstone(record))
        for other, record in live_extra_snat_ids(self._shadow, maps.family, ident):
            self._steps.at(Phase.PATH_OUT, maps.path_map).add(
                owner, U32.pack(other), backend_codec.path_tombstone(record)
            )
        if not maps.backend_rows.is_clear(ident):
            self._steps.at(Phase.BACKEND_OUT, maps.backend_map).add(owner, key)

    def _unreferenced(self) -> Iterator[tuple[_FamilyMaps, int]]:
        """Yield what restore found in the maps and no service names in that family."""
        for maps in self._families.values():
            for ident in sorted({*maps.backend_rows.used(), *maps.paths.used()}):
                if not self._is_planned(ident, maps) and not self._named(self._backend_of(ident, maps), maps):
                    yield maps, ident

    def _is_planned(self, ident: int, maps: _FamilyMaps) -> bool:
        """Whether a service names this id, of a backend of this family."""
        backend = self._seen.get(ident)
        return backend is not None and bool(self._refs.get(ident)) and self._maps_of(backend) is maps

    def _backend_of(self, ident: int, maps: _FamilyMaps) -> int:
        """Return the id of the backend whose extra SNAT path record has this id; of any other the id itself."""
        if ident in self._refs or self._now(ident) or not maps.backend_rows.is_clear(ident):
            return ident
        number = backend_codec.extra_snat_number(maps.paths.get(ident))
        return ident - number * extra_snat_stride(self._shadow.sizes.backends)

    def _named(self, ident: int, maps: _FamilyMaps) -> bool:
        if not self._now(ident):
            return ident in self._refs  # then it has been removed from both
        backend = self._seen.get(ident)
        return backend is None or self._maps_of(backend) is maps


@lru_cache(maxsize=1024)
def _state(refs: int) -> tuple[BackendState | None, bool]:
    """Return (state, whether new flows may take it) of a reference count; 100,000 of them are mostly equal."""
    return state_of(refs), is_selectable(refs)


def _also(owner: Owner | None, another: int) -> Owner:
    if owner is None:
        return another
    return (*owner, another) if isinstance(owner, tuple) else (owner, another)


def each_backend(state: State) -> Iterator[Backend]:
    """Yield each backend once, without the index that `State.backends` would keep."""
    seen: set[int] = set()
    for svc in state.services:
        for group in (svc.selectable, svc.unselectable, svc.slotless):
            for backend in group:
                if backend.id not in seen:
                    seen.add(backend.id)
                    yield backend
