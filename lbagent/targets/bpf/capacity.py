"""What fits into the maps, and what is written of a frontend that does not fit. Pure.

What is gone goes in any case. A frontend that is served stays, with what fits: its slots are overwritten in place, backends
without a slot get no new flows, and networks without an entry are refused. A new frontend that does not fit is refused whole:
half of it would serve no packet. Each of them has a shortage, which names map and object, and is planned again.

    map                    when the entries of a frontend that is served do not fit
    lb{4,6}_service        it has as many slots as it had at least; backends that have one keep it first
    lb{4,6}_port_range     it stays; a new range of ports that does not fit is refused
    lb_affinity_match      as with slots; where affinity begins, it begins when all matches fit
    lb{4,6}_source_range   it admits the networks that fit; where ranges name who is refused, it refuses all clients

Where more than 80 % of a map is wanted, a namespace beyond its fair share grows no more (map_shares.py): for its frontends the
map is full.

Entries that leave with the same plan leave after the new ones came, so that no packet meets the change. Where both do not fit
at once, those of the frontend itself leave first (`Fit.matches_first`, `ranges_first`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lbagent.errors import BeyondShare, LbError, MapFull
from lbagent.maps import frontend_codec
from lbagent.maps.frontend_codec import FrontendEntries
from lbagent.maps.lbmaps import SIZE_OPTION, map_full
from lbagent.maps.map_names import family_map
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.fair_share import GUARD, guard_of
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.model.id_claims import namespace_of
from lbagent.model.service import MAX_SLOTS, SVC
from lbagent.targets.bpf.map_shares import MapShares, wanted_counts
from lbagent.targets.bpf.retention import as_found
from lbagent.targets.bpf.shadow import LIMITED_MAPS, Limited, Shadow

_MATCHES = "lb_affinity_match"
_NAMED = 3  # backends or ranges that a message names
_SERVICE_MAPS = {family: family_map(family, "service") for family in Family}
_RANGE_MAPS = {family: family_map(family, "source_range") for family in Family}
_PORT_MAPS = {family: family_map(family, "port_range") for family in Family}
_PLACES = {name: at for names in LIMITED_MAPS.values() for at, name in enumerate(names)}
_KINDS = {name: ("slots", "affinity matches", "source ranges")[at] for name, at in _PLACES.items()}
_NOTHING_MORE: Limited = (0, 0, 0)
_UNSHARED = 1 << 62  # room of a namespace in a map without shares

Item = TypeVar("Item", bound=Hashable)


class Fit(Struct):
    """What is written of a frontend. `shortage` says what is missing; None when it is written whole."""

    svc: SVC | None
    entries: FrontendEntries
    shortage: LbError | None = None
    matches_first: bool = False  # affinity matches that leave go before those that come
    ranges_first: bool = False  # so do source ranges


class Undecided(Enum):
    """Why a frontend is not fitted in yet."""

    COUNT = auto()  # it takes a map beyond the guard: the plan must begin again, with shares
    LATER = auto()  # offer it again after all others: it may have what others cannot use


class MapCapacity:
    """The room that is left in the maps while a plan is made: up to the guard without `shares`, all of it with them."""

    def __init__(
        self, shadow: Shadow, shares: MapShares | None = None, waiting: Mapping[str, int] | None = None
    ) -> None:
        """`waiting`: entries, by map, that frontends beside the plan need."""
        self._specs = shadow.specs
        self._used = dict(shadow.used)
        self._backends = shadow.sizes.backends
        self._shares = shares
        self._limits = {name: shadow.specs[name].max_entries for name in _PLACES}
        if shares is None:
            asked = waiting or {}
            self._limits = {name: guard_of(limit) - asked.get(name, 0) for name, limit in self._limits.items()}
        self._least: dict[str, int] = {}  # what maps had left when a frontend was short of them
        self._refusals: list[_Refusal] = []
        self._with_ports: set[L3n4Addr] = set()  # whose prefixes are reserved: a frontend may be offered twice
        self._offered: dict[L3n4Addr, tuple[dict[str, int], Limited]] = {}  # what those got that are offered again

    def fit(self, svc: SVC, old: FrontendEntries) -> Fit | LbError | Undecided:
        """Reserve what a frontend needs beyond its `old` entries; return what is written, or why it is refused."""
        shares, wanted = self._shares, svc
        if svc.frontend.last_port and (full := self._without_room_for_ports(svc, old)):
            return full
        shortage = _beyond_limits(svc, self._backends)
        if shortage:
            svc = _within_limits(svc, self._backends, old)
        new = _entries(svc, old)
        if shares is None:
            if self._reserve(svc.frontend.family, old, new):
                return Fit(svc, new, shortage)
            return Undecided.COUNT
        return self._fit_in_shares(shares, wanted, Fit(svc, new, shortage), old)

    def _without_room_for_ports(self, svc: SVC, old: FrontendEntries) -> LbError | None:
        """Return why the prefixes of a range of ports do not fit; else reserve them."""
        if svc.frontend.scope is not Scope.EXTERNAL or svc.frontend in self._with_ports:
            return None
        name = _PORT_MAPS[svc.frontend.family]
        coming, used = len(frontend_codec.port_range_keys(svc.frontend) - old.ports), self._used.get(name, 0)
        limit = self._specs[name].max_entries
        if used + coming > limit:
            kept = f"{svc.frontend.with_protocol()} is left out; everything already written keeps serving"
            self._least[name] = min(limit - used, self._least.get(name, limit))
            error = map_full(name, used, limit, needed=coming, kept=kept)
            error.maps = frozenset((name,))
            return error
        self._with_ports.add(svc.frontend)
        self._take(name, coming)
        return None

    def room(self) -> dict[str, int]:
        """Return how many entries each map has left that a frontend may be short of, or had when one was."""
        used, specs = self._used, self._specs
        names = (*_PLACES, *_PORT_MAPS.values())
        left = {name: max(0, specs[name].max_entries - used.get(name, 0)) for name in names}
        return left | {name: min(room, left[name]) for name, room in self._least.items()}

    def share_room(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return what each namespace has left of its share, in the first round and in all, by map and namespace."""
        return self._shares.rooms() if self._shares is not None else {}

    def explain(self) -> None:
        """Write the texts with what the namespaces have when the plan is complete."""
        if (shares := self._shares) is not None:
            for refusal in self._refusals:
                refusal.explain(shares, self._specs[refusal.error.subject].max_entries)

    def _free(self, name: str) -> int:
        return max(0, self._limits[name] - self._used.get(name, 0))  # maps that were found may hold more

    def _take(self, name: str, entries: int) -> None:
        self._used[name] = self._used.get(name, 0) + entries

    def _reserve(self, family: Family, old: FrontendEntries, new: FrontendEntries) -> bool:
        """Reserve all entries that come, besides those that leave; return whether they fit."""
        slots, name = _coming_slots(old, new), _SERVICE_MAPS[family]
        if slots > self._free(name):
            return False
        matches = ranges = 0
        if new.affinity or new.ranges:
            matches, ranges = _coming_matches(old, new), len(new.ranges - old.ranges)
            if matches and matches > self._free(_MATCHES):
                return False
            if ranges and ranges > self._free(_RANGE_MAPS[family]):
                return False
            self._take(_MATCHES, matches)
            self._take(_RANGE_MAPS[family], ranges)
        if slots:
            self._take(name, slots)
        return True

    # --- what may be beyond a share ---

    def _fit_in_shares(
        self, shares: MapShares, wanted: SVC, fit: Fit, old: FrontendEntries
    ) -> Fit | LbError | Undecided:
        """Do what `fit` does where shares are counted: `fit` is the frontend written whole, `wanted` what its State has."""
        frontend, holder = wanted.frontend, namespace_of(wanted.name)
        names = LIMITED_MAPS[frontend.family]
        in_all = frontend in self._offered
        if in_all:
            self._give_back(shares, frontend, holder)
        rooms = {name: shares.room(name, holder) if name in shares else (_UNSHARED, _UNSHARED) for name in names}
        growth = dict(zip(names, _grown(fit.entries, old), strict=True))
        beyond = [name for name in names if growth[name] > max(0, rooms[name][in_all])]
        before = dict(self._used)
        if beyond or not self._reserve(frontend.family, old, fit.entries):
            parts = {name: max(0, room[in_all]) for name, room in rooms.items()}
            found = self._fit_in_part(fit, old, parts, _Beyond(holder, beyond, growth))
        else:
            found = fit
        taken = _taken(found, wanted, old)
        for name, entries in zip(names, taken, strict=True):
            shares.take(name, holder, entries)
        if not in_all and any(rooms[name][0] < rooms[name][1] for name in beyond):
            self._offered[frontend] = {name: self._used.get(name, 0) - before.get(name, 0) for name in names}, taken
            return Undecided.LATER
        error = found if isinstance(found, LbError) else found.shortage
        if isinstance(error, MapFull):
            error.shares = {(name, holder): shares.room(name, holder) for name in beyond}
        return found

    def _give_back(self, shares: MapShares, frontend: L3n4Addr, holder: str) -> None:
        """Take back what a frontend was given in the first round."""
        used, taken = self._offered[frontend]
        for name, entries in used.items():
            self._take(name, -entries)
        for name, entries in zip(LIMITED_MAPS[frontend.family], taken, strict=True):
            shares.take(name, holder, -entries)

    # --- what does not fit ---

    def _fit_in_part(self, fit: Fit, old: FrontendEntries, parts: Mapping[str, int], beyond: _Beyond) -> Fit | LbError:
        """Do what `fit` does for a frontend whose entries do not fit beside those that leave, or are `beyond` a share.

        `parts` are how many entries of each map its namespace may get.
        """
        svc, new, limit = fit.svc, fit.entries, fit.shortage
        assert svc is not None
        family = svc.frontend.family
        slots, ranges = _SERVICE_MAPS[family], _RANGE_MAPS[family]
        coming = {
            slots: _coming_slots(old, new),
            _MATCHES: _coming_matches(old, new),
            ranges: len(new.ranges - old.ranges),
        }
        leaving = {_MATCHES: _coming_matches(new, old), ranges: len(old.ranges - new.ranges)}
        full = [
            name
            for name, entries in coming.items()
            if entries > self._free(name) + leaving.get(name, 0)
            and not (name in beyond.maps and parts[name] < self._free(name))
        ]
        short = {*full, *beyond.maps}
        if short and 0 not in old.slots:
            left_out = ["the new frontend is left out; everything already written keeps serving"]
            self._note_room(full)
            return self._shortage(full, coming, beyond, left_out, _NOTHING_MORE)
        texts: list[str] = []
        if slots in short or _MATCHES in short:
            svc = self._with_fewer_backends(svc, old, parts, texts, matches_short=_MATCHES in short)
        if ranges in short:
            svc = self._with_fewer_ranges(svc, old, parts, texts)
        if short:
            new = _entries(svc, old)
            limit = self._shortage(full, coming, beyond, texts, _grown(new, old))
        done = self._in_order(svc.frontend.family, Fit(svc, new, limit), old)
        self._note_room(full)
        return done

    def _note_room(self, full: Iterable[str]) -> None:
        """Remember what is left while a frontend is short of these maps: others that follow may give room back."""
        for name in full:
            self._least[name] = min(self._free(name), self._least.get(name, self._free(name)))

    def _in_order(self, family: Family, fit: Fit, old: FrontendEntries) -> Fit:
        """Reserve what is written; decide which entries must leave before others come."""
        new = fit.entries
        self._take(_SERVICE_MAPS[family], _coming_slots(old, new))
        matches, ranges, name = _coming_matches(old, new), len(new.ranges - old.ranges), _RANGE_MAPS[family]
        fit.matches_first = matches > self._free(_MATCHES)
        fit.ranges_first = ranges > self._free(name)
        self._take(_MATCHES, matches - (_coming_matches(new, old) if fit.matches_first else 0))
        self._take(name, ranges - (len(old.ranges - new.ranges) if fit.ranges_first else 0))
        return fit

    def _with_fewer_backends(
        self, svc: SVC, old: FrontendEntries, parts: Mapping[str, int], texts: list[str], *, matches_short: bool
    ) -> SVC:
        slots = self._slots_within(svc.frontend.family, old, parts, frontend_codec.entry_count(svc)) - 1
        selectable = slots
        if matches_short:
            matches = min(self._free(_MATCHES), parts[_MATCHES]) + len(old.affinity)
            served = min(frontend_codec.selectable_count(old.slots[0]), len(svc.selectable), slots)
            if matches and matches >= served:
                selectable = min(slots, matches)
            else:  # rather without affinity than with fewer backends than now
                svc = replace(
                    svc,
                    session_affinity=False,
                    session_affinity_timeout_s=0,
                    flags=ServiceFlags(svc.flags & ~ServiceFlags.SESSION_AFFINITY),
                )
                texts.append("the frontend has no session affinity until all its backends fit")
        cut = with_slots(svc, slots, selectable, old.backend_ids())
        if number := frontend_codec.entry_count(svc) - frontend_codec.entry_count(cut):
            kept = {each.id for each in (*cut.selectable, *cut.unselectable)}
            left_out = [each for each in (*svc.selectable, *svc.unselectable) if each.id not in kept]
            names = _named([each.address.with_protocol() for each in left_out])
            texts.append(
                f"the frontend has {len(kept)} of its {len(kept) + number} backends;"
                f" no new flow goes to {names} until there is room"
            )
        return cut

    def _slots_within(self, family: Family, old: FrontendEntries, parts: Mapping[str, int], wanted: int) -> int:
        """Return how many slots a frontend can have, slot 0 among them: those that it has, and the room that is left."""
        name = _SERVICE_MAPS[family]
        room, wanted = self._free(name), min(wanted, len(old.slots) + parts[name])
        for slot in range(wanted):
            if slot not in old.slots:
                if not room:
                    return slot
                room -= 1
        return wanted

    def _with_fewer_ranges(self, svc: SVC, old: FrontendEntries, parts: Mapping[str, int], texts: list[str]) -> SVC:
        family, number = svc.frontend.family, len(svc.source_ranges)
        if svc.source_ranges_deny:
            texts.append(f"the frontend refuses all clients until the {number} source ranges that it refuses fit")
            return replace(
                svc,
                source_ranges=(),
                source_ranges_deny=False,
                flags=ServiceFlags(svc.flags & ~ServiceFlags.SOURCE_RANGE_DENY),
            )
        ranges = [cidr for cidr in svc.source_ranges if Family.of(cidr.network) is family]
        there = {cidr for cidr in ranges if frontend_codec.source_range_key(svc.id, cidr) in old.ranges}
        name = _RANGE_MAPS[family]
        fit = set(chosen(ranges, min(self._free(name), parts[name]) + len(old.ranges), there))
        names = _named([str(cidr) for cidr in ranges if cidr not in fit])
        texts.append(
            f"the frontend admits {len(fit)} of its {len(ranges)} source ranges; it refuses clients of {names} until these fit"
        )
        return replace(svc, source_ranges=tuple(cidr for cidr in ranges if cidr in fit))

    def _shortage(
        self,
        full: Sequence[str],
        coming: Mapping[str, int],
        beyond: _Beyond,
        texts: Iterable[str],
        grown: Limited,
    ) -> MapFull:
        """Return what is missing of a frontend that has `grown` so far."""
        kept = "; ".join(texts)
        name = full[0] if full else beyond.maps[0]
        used, limit = self._used.get(name, 0), self._specs[name].max_entries
        error: MapFull
        if full:
            error = map_full(name, used, limit, needed=coming[name], kept=kept)
        else:
            error = BeyondShare(name, kept)
            missing = beyond.growth[name] - grown[_PLACES[name]]
            self._refusals.append(_Refusal(error, beyond.namespace, missing, kept))
        error.maps = frozenset(full)
        return error


class _Beyond(Struct):
    """The `maps` in which a frontend would take its namespace beyond what it may have, and how much it grows in each map."""

    namespace: str
    maps: Sequence[str]
    growth: Mapping[str, int]


class _Refusal(Struct):
    """A shortage because of a share, whose text is written when the plan is complete."""

    error: BeyondShare
    namespace: str
    missing: int
    kept: str

    def explain(self, shares: MapShares, limit: int) -> None:
        """Say which share is used, and what to raise."""
        name, namespace = self.error.subject, self.namespace
        text = (
            f"namespace {namespace} has {shares.held(name, namespace)} of {limit} {_KINDS[name]} of {name} and asks for"
            f" {self.missing} more here; its fair share is {shares.share(name, namespace)} while more than"
            f" {float(GUARD):.0%} are wanted; raise {SIZE_OPTION[name]}; {self.kept}"
        )
        self.error.args = (text,)


# --- what no map can hold ---


def _beyond_limits(svc: SVC, backends: int) -> LbError | None:
    """Return what of a frontend no map can hold: slots beyond 16 bits, ids beyond the backend map."""
    if not svc.id and not svc.wildcard:
        raise ValueError(f"{svc.frontend.with_protocol()} has no id")
    slots = frontend_codec.entry_count(svc) - 1
    if slots > MAX_SLOTS:
        return LbError(
            f"{svc.frontend.with_protocol()} has {slots} backends, at most {MAX_SLOTS} fit; the others get no new flows"
        )
    for group in (svc.selectable, svc.unselectable, svc.slotless):
        for backend in group:
            if not 0 < backend.id < backends:
                if not backend.id:
                    raise ValueError(f"backend {backend.address.with_protocol()} has no id")
                return LbError(
                    f"backend {backend.address.with_protocol()} got id {backend.id} of {backends}: raise --max-backends;"
                    f" {svc.frontend.with_protocol()} is served without it"
                )
    return None


def _within_limits(svc: SVC, backends: int, old: FrontendEntries) -> SVC:
    """Return a frontend without what no map can hold."""
    groups = [
        tuple([each for each in group if each.id < backends])
        for group in (svc.selectable, svc.unselectable, svc.slotless)
    ]
    svc = replace(svc, selectable=groups[0], unselectable=groups[1], slotless=groups[2])
    return with_slots(svc, MAX_SLOTS, MAX_SLOTS, old.backend_ids())


# --- parts of a frontend ---


def _entries(svc: SVC, old: FrontendEntries) -> FrontendEntries:
    new = frontend_codec.encode(svc)
    return as_found(new, old) if svc.is_restored else new


def _grown(new: FrontendEntries, old: FrontendEntries) -> Limited:
    """Return how many entries of each of the `LIMITED_MAPS` a frontend has more than before."""
    return (
        len(new.slots) - len(old.slots),
        len(new.affinity) - len(old.affinity),
        len(new.ranges) - len(old.ranges),
    )


def _taken(found: Fit | LbError, wanted: SVC, old: FrontendEntries) -> Limited:
    """Return how many entries of each of the `LIMITED_MAPS` a namespace has more than it had of what it needs."""
    if isinstance(found, LbError):
        return _NOTHING_MORE
    slots, matches, ranges = wanted_counts(wanted)
    new = found.entries
    return (
        len(new.slots) - min(slots, len(old.slots)),
        len(new.affinity) - min(matches, len(old.affinity)),
        len(new.ranges) - min(ranges, len(old.ranges)),
    )


def _coming_slots(old: FrontendEntries, new: FrontendEntries) -> int:
    """Return how many slots `new`, which has no gap, has and `old` has not; a change that broke off may leave gaps there."""
    count, there = len(old.slots), old.slots
    if sum(there) == count * (count - 1) // 2:  # 0, 1, 2, ... without a gap
        return max(0, len(new.slots) - count)
    return len(new.slots.keys() - there.keys())


def _coming_matches(old: FrontendEntries, new: FrontendEntries) -> int:
    """Return how many affinity matches `new` has and `old` has not."""
    return len(new.affinity - old.affinity if new.id == old.id else new.affinity)


def chosen(items: Sequence[Item], number: int, first: Collection[Item]) -> list[Item]:
    """Return at most `number` items in their order: those in `first` before the others."""
    if len(items) <= number:
        return list(items)
    kept = [each for each in items if each in first][:number]
    kept += [each for each in items if each not in first][: number - len(kept)]
    found = set(kept)
    return [each for each in items if each in found]


def with_slots(svc: SVC, slots: int, selectable: int, served: Collection[int]) -> SVC:
    """Return a frontend that has at most as many slots besides slot 0, `selectable` of them for new flows.

    Backends (by id) that are `served` keep theirs first. The others stay without a slot: their flows live on.
    """
    groups = []
    for group, number in ((svc.selectable, min(slots, selectable)), (svc.unselectable, slots)):
        by_id = {each.id: each for each in group}
        kept = chosen(list(by_id), min(number, slots), served)
        groups.append(tuple([by_id[ident] for ident in kept]))
        slots -= len(kept)
    kept_ids = {each.id for group in groups for each in group}
    rest = tuple([each for each in (*svc.selectable, *svc.unselectable) if each.id not in kept_ids])
    return replace(svc, selectable=groups[0], unselectable=groups[1], slotless=(*svc.slotless, *rest))


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
