"""The frontends (SVC) of all owners, in the order of their objects: the contents of a State."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, chain

from msgspec.structs import replace

from lbagent.model.backend import Backend
from lbagent.model.service import SVC
from lbagent.model.state import State, StateDelta
from lbagent.objects.records import Origin


class FrontendList:
    """Owners (Services, Pods) sorted by origin, then by key; each with its SVCs."""

    def __init__(self) -> None:
        self._places: list[tuple[Origin, str]] = []
        self._frontends: list[tuple[SVC, ...]] = []  # beside `_places`, so that a State is one pass in C
        self._origins: dict[str, Origin] = {}
        self._flat: list[SVC] = []  # every SVC in order; the previous result:
        self._last: tuple[SVC, ...] = ()
        self._starts = array("I", [0])  # where each owner's SVCs start in `_last`, and its end
        self._touched = (0, 0)  # owners first..end with changed SVCs
        self._moved = False  # owners were added or removed

    def place(self, owner: str, origin: Origin | None) -> None:
        """Place an owner at its object; None removes it and its SVCs."""
        old = self._origins.get(owner)
        if old == origin:
            return
        frontends: tuple[SVC, ...] = ()
        if old is not None:
            at = bisect_left(self._places, (old, owner))
            frontends = self._frontends.pop(at)
            del self._places[at], self._origins[owner]
        self._moved = True
        if origin is not None:
            at = bisect_left(self._places, (origin, owner))
            self._places.insert(at, (origin, owner))
            self._frontends.insert(at, frontends)
            self._origins[owner] = origin

    def set_frontends(self, owner: str, frontends: tuple[SVC, ...]) -> None:
        """Store the SVCs of a placed owner; an equal SVC stays the same object, by which a plan detects changes."""
        origin = self._origins.get(owner)
        if origin is None:
            return
        at = bisect_left(self._places, (origin, owner))
        old = self._frontends[at]
        if frontends != old:
            self._frontends[at] = _with_known(frontends, old)
            first, end = self._touched
            self._touched = (min(first, at), max(end, at + 1)) if end else (at, at + 1)

    def of(self, owner: str) -> tuple[SVC, ...]:
        """Return the SVCs of an owner; () for one without a place."""
        origin = self._origins.get(owner)
        return () if origin is None else self._frontends[bisect_left(self._places, (origin, owner))]

    def owners(self) -> Iterator[str]:
        """Iterate over the owners in order."""
        return (owner for _, owner in self._places)

    def state(self, generation: int) -> State:
        """Return every SVC in order. A lone change costs a copy of the list, not a step for each SVC."""
        before, starts, (first, end) = self._last, self._starts, self._touched
        if self._moved:
            self._flat = list(chain.from_iterable(self._frontends))
            self._starts = array("I", accumulate(map(len, self._frontends), initial=0))
        elif end:
            self._flat[starts[first] : starts[end]] = chain.from_iterable(self._frontends[first:end])
            if any(len(self._frontends[at]) != starts[at + 1] - starts[at] for at in range(first, end)):
                self._starts = array("I", accumulate(map(len, self._frontends), initial=0))
        if self._moved or end:
            self._last = tuple(self._flat)
        delta = None if self._moved else StateDelta(before, self._last, starts[first], len(before) - starts[end])
        self._touched, self._moved = (0, 0), False
        return State(generation, self._last, delta)


def _with_known(frontends: tuple[SVC, ...], old: tuple[SVC, ...]) -> tuple[SVC, ...]:
    """Return new SVCs, replaced by equal old ones, else with equal old backends: this saves memory."""
    if not old:
        return frontends
    known = {svc.frontend: svc for svc in old}
    backends = {backend: backend for svc in old for backend in svc.backends}
    groups: dict[int, tuple[Backend, ...]] = {}  # by id of a new one: frontends of one port share theirs

    def same(group: tuple[Backend, ...]) -> tuple[Backend, ...]:
        found = groups.get(id(group))
        if found is None:
            found = groups[id(group)] = tuple([backends.get(backend, backend) for backend in group])
        return found

    return tuple(
        [
            before
            if (before := known.get(svc.frontend)) == svc
            else replace(
                svc,
                selectable=same(svc.selectable),
                unselectable=same(svc.unselectable),
                slotless=same(svc.slotless),
            )
            for svc in frontends
        ]
    )
