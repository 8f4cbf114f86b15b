"""Ids: monotonic, restored from the pinned maps at start, never given out again at once.

Service ids are u16 and belong to a frontend (with its scope); backend ids are u32 below 2^20 and belong to an address,
port and protocol. Id 0 is never given: a wildcard row keeps it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec.structs import replace

from lbagent.errors import LbError
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_whole
from lbagent.model.service import SVC
from lbagent.model.state import State, StateDelta, common_prefix_and_suffix

SERVICE_ID_LIMIT = 1 << 16  # u16 in every map key
BACKEND_ID_LIMIT = 1 << 20  # bits of a flow entry; also at most the path array's records
_USED = b"\1"

Key = TypeVar("Key", bound=Hashable)


class IdsExhausted(LbError):
    """Every id is in use: the new frontend or backend is left out, the others keep serving."""


class IdAllocator(Generic[Key]):
    """Gives ids of [first, limit) to keys, upwards, round and round, so that a released id rests as long as possible."""

    def __init__(self, first: int = 1, limit: int = BACKEND_ID_LIMIT, advice: str = "") -> None:
        self._first, self._limit, self._advice = first, limit, advice
        self._end = limit  # new ids are below it
        self._next = first
        self._ids: dict[Key, int] = {}
        self._restored: dict[
            Key, int
        ] = {}  # those not claimed yet: then the caller's key stays, not its equal from the maps
        self._used = bytearray(limit)  # 1 = in use: a set of 100,000 would take 7 MiB

    @property
    def limit(self) -> int:
        """Every id is below it."""
        return self._limit

    def __len__(self) -> int:
        """Return how many ids are in use."""
        return len(self._ids) + len(self._restored)

    def get(self, key: Key) -> int | None:
        """Return the key's id, if it has one."""
        known = self._ids.get(key)
        return self._restored.get(key) if known is None else known

    def restore(self, pairs: Iterable[tuple[Key, int]]) -> None:
        """Take over what the maps hold; new ids then start behind the highest. A pair out of range or taken is passed over."""
        for key, number in pairs:
            if self._first <= number < self._limit and not self._used[number] and self.get(key) is None:
                self._restored[key] = number
                self._used[number] = 1
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
        return number

    def allocate_each(self, keys: Sequence[Key]) -> list[int]:
        """Return the ids of the keys. Where all of a start's are new, and the next ids free, that costs no step each."""
        ids, first = self._ids, max(self._next, self._first)
        end = first + len(keys)
        if self._restored or end > self._end or self._used.find(1, first, end) >= 0 or not ids.keys().isdisjoint(keys):
            return [self.allocate(key) for key in keys]
        numbers, before = list(range(first, end)), len(ids)  # one object a number, here and in the backend
        ids.update(zip(keys, numbers, strict=True))
        self._used[first:end] = _USED * len(keys)
        self._next = end
        if len(ids) - before == len(keys):
            return numbers
        found = [ids[key] for key in keys]  # a key came twice: the ids it had before are free again
        for number in set(numbers).difference(found):
            self._used[number] = 0
        return found

    def give_below(self, end: int, advice: str) -> None:
        """Give new ids below `end` alone, at most the limit; keys that have another keep it. `advice`: what to do at the end."""
        self._end, self._advice = min(end, self._limit), advice

    def release(self, key: Key) -> None:
        """Free the key's id; a key without one is fine."""
        for ids in (self._ids, self._restored):
            number = ids.pop(key, None)
            if number is not None:
                self._used[number] = 0

    def release_unclaimed(self) -> None:
        """Free the restored ids that no `allocate` has asked for."""
        for number in self._restored.values():
            self._used[number] = 0
        self._restored = {}

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

    An SVC object that is the same as in the State before gives the same assigned object back, so that a change of one
    service among 10,000 copies one service, and `plan` sees by identity what did not change.
    `errors` holds (frontend, IdsExhausted) for each SVC of the last State that had to be left out.
    """

    def __init__(self, service_ids: IdAllocator[L3n4Addr], backend_ids: IdAllocator[L3n4Addr]) -> None:
        self.service_ids, self.backend_ids = service_ids, backend_ids
        self.errors: list[tuple[L3n4Addr, IdsExhausted]] = []
        # Both by id(resolved SVC). The resolved object is kept, or its id() could be another's tomorrow.
        self._resolved: dict[int, SVC] = {}
        self._assigned: dict[int, SVC] = {}
        self._last = State()  # resolved, without those left out
        self._numbered: list[SVC] = []  # beside `_last`, and as it was given out:
        self._given: tuple[SVC, ...] = ()
        self._frontends: Counter[L3n4Addr] = Counter()  # how many SVCs of the State use it; two only for a moment
        self._backend_uses = array("I")  # the same by id of a backend: a Counter took 10 MiB of 200,000

    def assign(self, state: State) -> State:
        """Return the State with ids; SVCs that found none are left out and named in `errors`.

        What is the same object at both ends of the two States costs next to nothing: well below 1 ms for one change of 20,000.
        """
        return run_whole(self.assigning(state))

    def assigning(self, state: State) -> Cooperative[State]:
        """Do what `assign` does."""
        old, new = self._last.services, state.services
        prefix, suffix = common_prefix_and_suffix(old, new, state.delta)
        self.errors = []
        middle = new[prefix : len(new) - suffix]
        keys = [id(svc) for svc in middle]
        gone = {id(svc) for svc in old[prefix : len(old) - suffix]}.difference(keys)
        before = {self._resolved[key].frontend: key for key in gone}
        for at, (key, svc) in enumerate(zip(keys, middle, strict=True)):
            if key not in self._assigned:
                self._add(key, svc, before.get(svc.frontend))
                if not at % BETWEEN_YIELDS:
                    yield
        for key in gone:  # after the new ones, so that a changed SVC keeps its ids
            self._remove(key)
        if self.errors:  # the two States do not lie side by side any more
            return self._assign_all(state)
        given, numbered = self._given, self._numbered
        numbered[prefix : len(numbered) - suffix] = map(self._assigned.__getitem__, keys)
        self._last, self._given = state, tuple(numbered)
        return State(state.generation, self._given, StateDelta(given, self._given, prefix, suffix))

    def _assign_all(self, state: State) -> State:
        keys = list(map(id, state.services))
        self._numbered = [self._assigned[key] for key in keys if key in self._assigned]
        self._last = State(0, tuple(self._resolved[key] for key in keys if key in self._resolved))
        self._given = tuple(self._numbered)
        return State(state.generation, self._given)

    def release_restored(self) -> None:
        """Free restored ids that no State used: call it once, after the first full State was applied and pruned."""
        self.service_ids.release_unclaimed()
        self.backend_ids.release_unclaimed()

    def _add(self, key: int, svc: SVC, before: int | None) -> None:
        """Assign ids to an SVC; `before` is the key of the one that it replaces, whose backends stay the same objects."""
        known = self._same_backends(before) if before is not None else {}
        try:
            number = 0 if svc.wildcard else self.service_ids.allocate(svc.frontend)
            groups = [
                self._with_ids(group, known) if group else ()
                for group in (svc.selectable, svc.unselectable, svc.slotless)
            ]
        except IdsExhausted as error:
            self.errors.append((svc.frontend, error))
            self._release_unused(svc)
            return
        self._frontends[svc.frontend] += 1
        uses, limit = self._backend_uses, self.backend_ids.limit
        if len(uses) < limit:
            uses.frombytes(bytes(uses.itemsize * (limit - len(uses))))
        for group in groups:
            for backend in group:
                uses[backend.id] += 1
        self._resolved[key] = svc
        if svc.wildcard and not (svc.id or any(groups)):  # without ids it stays as it is
            self._assigned[key] = svc
            return
        self._assigned[key] = replace(svc, id=number, selectable=groups[0], unselectable=groups[1], slotless=groups[2])

    def _same_backends(self, key: int) -> dict[int, Backend]:
        """Return the backends of an SVC as they were given out, by id(resolved Backend)."""
        resolved, assigned = self._resolved[key].backends, self._assigned[key].backends
        return dict(zip(map(id, resolved), assigned, strict=True))

    def _with_ids(self, group: tuple[Backend, ...], known: dict[int, Backend]) -> tuple[Backend, ...]:
        if known:
            allocate = self.backend_ids.allocate
            return tuple(
                [known.get(id(backend)) or replace(backend, id=allocate(backend.address)) for backend in group]
            )
        numbers = self.backend_ids.allocate_each([backend.address for backend in group])
        return tuple([replace(backend, id=number) for backend, number in zip(group, numbers, strict=True)])

    def _release_unused(self, svc: SVC) -> None:
        self.service_ids.release(svc.frontend)  # an older SVC of this frontend is not in the State any more
        for backend in svc.backends:
            number = self.backend_ids.get(backend.address)
            if number is not None and not any(self._backend_uses[number : number + 1]):
                self.backend_ids.release(backend.address)

    def _remove(self, key: int) -> None:
        del self._resolved[key]
        svc, frontends, uses = self._assigned.pop(key), self._frontends, self._backend_uses
        frontends[svc.frontend] -= 1
        if not frontends[svc.frontend]:
            del frontends[svc.frontend]
            self.service_ids.release(svc.frontend)
        for backend in svc.backends:
            uses[backend.id] -= 1
            if not uses[backend.id]:
                self.backend_ids.release(backend.address)
