"""Ids: monotonic, restored at start from what an earlier agent left, not reused at once.

Service ids are u16 and belong to a frontend (with its scope); backend ids are u32 below 2^20 and belong to an address, port and
protocol. Id 0 is never assigned: wildcard entries have it.

Where there are enough ids, they are assigned in the order of the State. When more than 80 % would be in use, `id_shares.py`
decides which frontends and backends get one. A served frontend keeps its ids and continues with the backends that have one; a new
frontend gets all that it needs or none.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_whole
from lbagent.model.fair_share import guard_of
from lbagent.model.id_shares import Credit, IdsExhausted, Shares, groups_of, lacking, sharing
from lbagent.model.service import SVC
from lbagent.model.state import State, StateDelta, common_prefix_and_suffix

SERVICE_ID_LIMIT = 1 << 16  # u16 in the keys of BPF maps
BACKEND_ID_LIMIT = 1 << 20  # bits of a flow entry; also at most the path array's records
_USED = b"\1"

Key = TypeVar("Key", bound=Hashable)


class IdAllocator(Generic[Key]):
    """Assigns ids of [first, limit) to keys, upwards and cyclically, so that a released id rests as long as possible."""

    def __init__(self, first: int = 1, limit: int = BACKEND_ID_LIMIT, advice: str = "") -> None:
        self._first, self._limit, self._advice = first, limit, advice
        self._end = limit  # new ids are below it
        self._next = first
        self._ids: dict[Key, int] = {}
        self._restored: dict[
            Key, int
        ] = {}  # not claimed yet: then the caller's key is kept, not its equal from what an earlier agent left
        self._used = bytearray(limit)  # 1 = in use: a set of 100,000 would take 7 MiB
        self._free = limit - first  # below `_end`
        self._guard = guard_of(self.capacity)
        self._retired: list[int] = []  # of removed keys; the data plane may still hold them

    @property
    def limit(self) -> int:
        """Every id is below it."""
        return self._limit

    @property
    def capacity(self) -> int:
        """Return the number of ids below the end."""
        return max(0, self._end - self._first)

    @property
    def free(self) -> int:
        """Return how many ids below the end can be assigned now."""
        return self._free

    @property
    def room(self) -> int:
        """Return how many more keys may want ids until 80 % are wanted; restored ids without a claim do not count."""
        return self._guard - len(self._ids)

    @property
    def advice(self) -> str:
        """What to do when no id is left; '' when nothing helps."""
        return self._advice

    def __len__(self) -> int:
        """Return how many keys have an id."""
        return len(self._ids) + len(self._restored)

    def get(self, key: Key) -> int | None:
        """Return the key's id, if it has one."""
        known = self._ids.get(key)
        return self._restored.get(key) if known is None else known

    def restore(self, pairs: Iterable[tuple[Key, int]]) -> None:
        """Load the ids that an earlier agent left; new ids start after the highest. A pair out of range or in use is skipped."""
        for key, number in pairs:
            if self._first <= number < self._limit and not self._used[number] and self.get(key) is None:
                self._restored[key] = number
                self._use(number)
                self._next = max(self._next, number + 1)

    def allocate(self, key: Key) -> int:
        """Return the key's id, a new one if it has none. Raises IdsExhausted when all are in use."""
        known = self._ids.get(key)
        if known is not None:
            return known
        if self._restored and (known := self._restored.pop(key, None)) is not None:
            self._ids[key] = known
            return known
        number = self._used.find(0, max(self._next, self._first), self._end)
        if number < 0:
            number = self._used.find(0, self._first, self._end)
        if number < 0:
            advice = f"; {self._advice}" if self._advice else ""
            raise IdsExhausted(
                f"all {self._end - self._first} ids are in use, none is left for {key}{advice}; what is served stays"
            )
        self._next = number + 1
        self._ids[key] = number
        self._used[number] = 1
        self._free -= 1
        return number

    def _use(self, number: int) -> None:
        self._used[number] = 1
        self._free -= number < self._end

    def _unuse(self, number: int) -> None:
        self._used[number] = 0
        self._free += number < self._end

    def allocate_each(self, keys: Sequence[Key]) -> list[int]:
        """Return the ids of the keys. If all keys are new, as at a start, and the next ids free, there is no step per key."""
        ids, first = self._ids, max(self._next, self._first)
        end = first + len(keys)
        if self._restored or end > self._end or self._used.find(1, first, end) >= 0 or not ids.keys().isdisjoint(keys):
            return [self.allocate(key) for key in keys]
        numbers, before = list(range(first, end)), len(ids)  # one object per number, here and in the backend
        ids.update(zip(keys, numbers, strict=True))
        self._used[first:end] = _USED * len(keys)
        self._free -= len(keys)
        self._next = end
        if len(ids) - before == len(keys):
            return numbers
        found = [ids[key] for key in keys]  # a key occurred twice: its earlier ids are free again
        for number in set(numbers).difference(found):
            self._unuse(number)
        return found

    def give_below(self, end: int, advice: str) -> None:
        """Assign only new ids below `end`, at most the limit; keys with higher ids keep them. `advice`: what to do at the end."""
        self._end, self._advice = min(end, self._limit), advice
        self._free = self._used.count(0, self._first, self._end)
        self._guard = guard_of(self.capacity)

    def release(self, key: Key) -> None:
        """Free the key's id; a key without one is ignored."""
        for ids in (self._ids, self._restored):
            number = ids.pop(key, None)
            if number is not None:
                self._unuse(number)

    def retire(self, key: Key) -> None:
        """Remove the id from a key and reserve it until `free_retired`."""
        for ids in (self._ids, self._restored):
            number = ids.pop(key, None)
            if number is not None:
                self._retired.append(number)

    def retire_unclaimed(self) -> None:
        """Retire the restored ids that no `allocate` has requested."""
        self._retired += self._restored.values()
        self._restored = {}

    def retired(self, is_named: Callable[[int], bool]) -> bool:
        """Return whether `free_retired` would free an id."""
        return not all(map(is_named, self._retired))

    def free_retired(self, is_named: Callable[[int], bool]) -> None:
        """Free the retired ids that the data plane no longer holds: flows and slots of the old key cannot match a new one."""
        if not self._retired:
            return
        retired, self._retired = self._retired, []
        for number in retired:
            if is_named(number):
                self._retired.append(number)
            else:
                self._unuse(number)

    def in_use(self) -> list[Key]:
        """Return the keys that have ids."""
        return [*self._ids, *self._restored]


def assign_ids(state: State, service_ids: IdAllocator[L3n4Addr], backend_ids: IdAllocator[L3n4Addr]) -> State:
    """Return the State with ids in every SVC and Backend, in State order and order of first use. Raises IdsExhausted.

    Releases nothing. For one State; a running agent uses an IdAssigner.
    """
    ids = IdAssigner(service_ids, backend_ids)
    out = ids.assign(state)
    if ids.errors:
        raise ids.errors[0][1]
    return out


class IdAssigner:
    """Assigns ids to one State after another and releases those that no State uses any more.

    An SVC object that is the same as in the previous State returns the same assigned object, so that a change of one service
    among 10,000 copies one service, and `plan` sees by identity what did not change. `errors` holds (frontend, IdsExhausted) for
    each SVC of the last State that was left out, or lacks backends. A released id is free at the next State, when the data plane no
    longer holds it (`*_id_is_named`).
    """

    def __init__(self, service_ids: IdAllocator[L3n4Addr], backend_ids: IdAllocator[L3n4Addr]) -> None:
        self.service_ids, self.backend_ids = service_ids, backend_ids
        self.service_id_is_named: Callable[[int], bool] = _never
        self.backend_id_is_named: Callable[[int], bool] = _never
        self.max_endpoints_per_namespace = 0  # 0: no limit
        self.errors: list[tuple[L3n4Addr, IdsExhausted]] = []
        # Both by id(resolved SVC). The resolved object is kept, or another object could get its id() later.
        self._resolved: dict[int, SVC] = {}
        self._assigned: dict[int, SVC] = {}
        self._partial: set[int] = set()  # those whose assigned SVC lacks backends
        self._credit = Credit()
        self._last = State()  # resolved, without those left out
        self._numbered: list[SVC] = []  # beside `_last`: the assigned ones
        self._given: tuple[SVC, ...] = ()
        self._frontends: Counter[L3n4Addr] = Counter()  # how many SVCs of the State use it; two only for a moment
        self._backend_uses = array("I")  # the same by id of a backend: a Counter took 10 MiB of 200,000

    def assign(self, state: State) -> State:
        """Return the State with ids; SVCs without ids are left out and listed in `errors`.

        SVCs that are the same objects at both ends of the two States cost almost nothing: well below 1 ms for one change of
        20,000.
        """
        return run_whole(self.assigning(state))

    def assigning(self, state: State) -> Cooperative[State]:
        """Do what `assign` does."""
        self.service_ids.free_retired(self.service_id_is_named)
        self.backend_ids.free_retired(self.backend_id_is_named)
        if self.errors:  # the two States cannot be compared by position, and missing ids may be available now
            return (yield from self._assigning_in_shares(state))
        old, new = self._last.services, state.services
        prefix, suffix = common_prefix_and_suffix(old, new, state.delta)
        middle = new[prefix : len(new) - suffix]
        keys = [id(svc) for svc in middle]
        added = [(key, svc) for key, svc in zip(keys, middle, strict=True) if key not in self._assigned]
        if not self._fits([svc for _, svc in added]):
            return (yield from self._assigning_in_shares(state))
        gone = {id(svc) for svc in old[prefix : len(old) - suffix]}.difference(keys)
        before = {self._resolved[key].frontend: key for key in gone}
        for at, (key, svc) in enumerate(added):
            try:
                self._add(key, svc, before.get(svc.frontend))
            except IdsExhausted:  # ids of an earlier agent that no State has claimed yet, or that rest, are too many
                return (yield from self._assigning_in_shares(state))
            if not at % BETWEEN_YIELDS:
                yield
        for key in gone:  # after the new ones, so that a changed SVC keeps its ids
            self._remove(key)
        given, numbered = self._given, self._numbered
        numbered[prefix : len(numbered) - suffix] = map(self._assigned.__getitem__, keys)
        self._last, self._given = state, tuple(numbered)
        return State(state.generation, self._given, StateDelta(given, self._given, prefix, suffix))

    def backend_uses(self, ident: int) -> int:
        """Return how many SVCs of the last State have this backend."""
        return self._backend_uses[ident] if ident < len(self._backend_uses) else 0

    def release_restored(self) -> None:
        """Free restored ids that no State used: call it once, after the first full State was applied and pruned."""
        self.service_ids.retire_unclaimed()
        self.backend_ids.retire_unclaimed()

    @property
    def finds_more(self) -> bool:
        """Whether the same State, assigned again, may get ids that it lacks."""
        return bool(self.errors) and (
            self.service_ids.retired(self.service_id_is_named) or self.backend_ids.retired(self.backend_id_is_named)
        )

    # --- with enough ids ---

    def _fits(self, added: Sequence[SVC]) -> bool:
        """Return whether at most 80 % of the ids are wanted including these SVCs, or none needs a new one."""
        if not added:
            return True
        if len(added) > (room := self.service_ids.room):
            frontends = [svc.frontend for svc in added if not svc.wildcard]
            if _without_id(self.service_ids, frontends) > max(0, room):
                return False
        limited, room = self.max_endpoints_per_namespace, self.backend_ids.room
        if not limited and sum([sum(map(len, map(group, added))) for group in _GROUPS]) <= room:
            return True
        # Frontends of one port share their groups.
        groups = {id(group): group for svc in added for group in groups_of(svc) if group}
        if not limited and sum(map(len, groups.values())) <= room:
            return True
        addresses = [backend.address for group in groups.values() for backend in group]
        return _without_id(self.backend_ids, addresses) <= (0 if limited else max(0, room))

    def _add(self, key: int, svc: SVC, before: int | None) -> None:
        """Assign ids to an SVC; `before` is the key of the SVC that it replaces, whose backends stay the same objects."""
        known = self._same_backends(before) if before is not None else {}
        number = 0 if svc.wildcard else self.service_ids.allocate(svc.frontend)
        groups = [
            self._with_ids(group, known) if group else () for group in (svc.selectable, svc.unselectable, svc.slotless)
        ]
        self._note(key, svc, number, groups)

    def _note(self, key: int, svc: SVC, number: int, groups: Sequence[tuple[Backend, ...]]) -> None:
        """Record an SVC and its assigned object."""
        self._frontends[svc.frontend] += 1
        uses = self._backend_uses
        highest = max([backend.id for group in groups for backend in group], default=0)
        if highest >= len(uses):  # room for all ids below the limit would take 4 MiB
            uses.frombytes(bytes(uses.itemsize * (max(highest + 1, 2 * len(uses)) - len(uses))))
        for group in groups:
            for backend in group:
                uses[backend.id] += 1
        self._resolved[key] = svc
        if svc.wildcard and not (svc.id or any(groups_of(svc))):  # without ids it stays unchanged
            self._assigned[key] = svc
            return
        self._assigned[key] = replace(svc, id=number, selectable=groups[0], unselectable=groups[1], slotless=groups[2])

    def _same_backends(self, key: int) -> dict[int, Backend]:
        """Return the assigned backends of an SVC, by id(resolved Backend)."""
        resolved, assigned = self._resolved[key].backends, self._assigned[key].backends
        if key not in self._partial:
            return dict(zip(map(id, resolved), assigned, strict=True))
        given = {backend.address: backend for backend in assigned}
        return {id(backend): given[backend.address] for backend in resolved if backend.address in given}

    def _with_ids(self, group: tuple[Backend, ...], known: dict[int, Backend]) -> tuple[Backend, ...]:
        if known:
            allocate = self.backend_ids.allocate
            return tuple(
                [known.get(id(backend)) or replace(backend, id=allocate(backend.address)) for backend in group]
            )
        numbers = self.backend_ids.allocate_each([backend.address for backend in group])
        return tuple([replace(backend, id=number) for backend, number in zip(group, numbers, strict=True)])

    def _remove(self, key: int) -> None:
        del self._resolved[key]
        self._partial.discard(key)
        svc, frontends, uses = self._assigned.pop(key), self._frontends, self._backend_uses
        frontends[svc.frontend] -= 1
        if not frontends[svc.frontend]:
            del frontends[svc.frontend]
            self.service_ids.retire(svc.frontend)
        for backend in svc.backends:
            uses[backend.id] -= 1
            if not uses[backend.id]:
                self.backend_ids.retire(backend.address)

    # --- with too few ids ---

    def _assigning_in_shares(self, state: State) -> Cooperative[State]:
        """Assign the SVCs that have ids already, and the granted ones of the rest."""
        services = state.services
        keys = list(map(id, services))
        gone = self._assigned.keys() - set(keys)
        coming = [svc for key, svc in zip(keys, services, strict=True) if key not in self._assigned]
        self._give_credit([self._assigned[key] for key in gone], coming)
        whole = self._assigned.keys() - self._partial
        shares = yield from sharing(
            services, whole, self.service_ids, self.backend_ids, self._credit, self.max_endpoints_per_namespace
        )
        self.errors = []
        before = {self._resolved[key].frontend: key for key in gone}
        for at, (key, svc) in enumerate(zip(keys, services, strict=True)):
            if not at % BETWEEN_YIELDS:
                yield
            if error := shares.left_out.get(key):
                self.errors.append((svc.frontend, error))
            elif key not in self._assigned or key in self._partial:
                self._add_granted(key, svc, before.get(svc.frontend), shares)
        for key in gone:  # after the new ones, so that a changed SVC keeps its ids
            self._remove(key)
        self._credit = shares.credit if self.finds_more else Credit()
        self._numbered = [self._assigned[key] for key in keys if key in self._assigned]
        self._last = State(0, tuple(self._resolved[key] for key in keys if key in self._resolved))
        self._given = tuple(self._numbered)
        return State(state.generation, self._given)

    def _add_granted(self, key: int, svc: SVC, before: int | None, shares: Shares) -> None:
        """Assign ids to an SVC and to those of its backends that have or got one; report the others."""
        get, granted = self.backend_ids.get, shares.backends
        missing = [each.address for each in svc.backends if get(each.address) is None and each.address not in granted]
        former = self._assigned.get(key)
        if former is None or len(svc.backends) - len(former.backends) != len(missing):
            self._replace(key, svc, key if former is not None else before, set(missing))
        if missing:
            self.errors.append((svc.frontend, lacking(svc, self._assigned[key], missing, shares)))

    def _replace(self, key: int, svc: SVC, before: int | None, missing: set[L3n4Addr]) -> None:
        """Assign an SVC without the backends that have no id, in place of its previous assignment."""
        known = self._same_backends(before) if before is not None else {}
        former = self._assigned.get(key)
        number = 0 if svc.wildcard else self.service_ids.allocate(svc.frontend)
        groups = [
            self._with_ids(tuple([each for each in group if each.address not in missing]), known)
            for group in groups_of(svc)
        ]
        if svc.selectable and not groups[0]:
            groups[:2] = _fallback(groups[1])
        self._note(key, svc, number, groups)
        if former is not None:  # its backends are counted twice now
            self._frontends[svc.frontend] -= 1
            for backend in former.backends:
                self._backend_uses[backend.id] -= 1
        self._partial.discard(key)
        if missing:
            self._partial.add(key)

    def _give_credit(self, gone: Sequence[SVC], coming: Sequence[SVC]) -> None:
        """Count the ids that Services release by this change: those without a remaining user and unused by new SVCs."""
        used = {each.address for svc in coming for each in svc.backends}
        frontends = Counter(svc.frontend for svc in gone)
        frontends.subtract({svc.frontend: 1 for svc in coming})
        users = Counter(each.id for svc in gone for each in svc.backends)
        credit = self._credit
        for svc in gone:
            left = {each.address for each in svc.backends if users[each.id] == self._backend_uses[each.id]} - used
            used |= left  # each counts once
            credit.backends[svc.name] = credit.backends.get(svc.name, 0) + len(left)
            if not svc.wildcard and frontends[svc.frontend] == self._frontends[svc.frontend]:
                credit.frontends[svc.name] = credit.frontends.get(svc.name, 0) + 1


_GROUPS = tuple(map(attrgetter, ("selectable", "unselectable", "slotless")))


def _never(_: int) -> bool:
    return False


def _without_id(ids: IdAllocator[L3n4Addr], keys: Iterable[L3n4Addr]) -> int:
    return sum([ids.get(key) is None for key in set(keys)])


def _fallback(resting: tuple[Backend, ...]) -> tuple[tuple[Backend, ...], tuple[Backend, ...]]:
    """Return (selectable, unselectable) if no backend for new flows has an id: then terminating ones take them (KEP-1669)."""
    terminating = tuple([each for each in resting if each.state is BackendState.TERMINATING])
    return terminating, tuple([each for each in resting if each.state is not BackendState.TERMINATING])
