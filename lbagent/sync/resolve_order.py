"""The rows of all owners, in the order of their objects: what a State is made of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from lbagent.model.service import SVC
from lbagent.sync.objects import Origin


class OrderedRows:
    """Owners (Services, Pods) sorted by origin, then by key; each with its rows."""

    def __init__(self) -> None:
        """Start empty."""
        self._places: list[tuple[Origin, str]] = []
        self._rows: list[tuple[SVC, ...]] = []  # beside `_places`, so that a State is one pass in C
        self._origins: dict[str, Origin] = {}

    def place(self, owner: str, origin: Origin | None) -> None:
        """Put an owner where its object is; None takes it and its rows away."""
        old = self._origins.get(owner)
        if old == origin:
            return
        rows: tuple[SVC, ...] = ()
        if old is not None:
            at = bisect_left(self._places, (old, owner))
            rows = self._rows.pop(at)
            del self._places[at], self._origins[owner]
        if origin is not None:
            at = bisect_left(self._places, (origin, owner))
            self._places.insert(at, (origin, owner))
            self._rows.insert(at, rows)
            self._origins[owner] = origin

    def keep(self, owner: str, rows: tuple[SVC, ...]) -> None:
        """Take the rows of a placed owner; a row that is equal stays the same object, by which others see what changed."""
        origin = self._origins.get(owner)
        if origin is None:
            return
        at = bisect_left(self._places, (origin, owner))
        old = self._rows[at]
        if rows != old:
            known = {svc.frontend: svc for svc in old}
            self._rows[at] = tuple([_same(known.get(svc.frontend), svc) for svc in rows])

    def owners(self) -> Iterator[str]:
        """Iterate over the owners in order."""
        return (owner for _, owner in self._places)

    def all(self) -> tuple[SVC, ...]:
        """Return every row in order."""
        return tuple(chain.from_iterable(self._rows))


def _same(old: SVC | None, new: SVC) -> SVC:
    return old if old is not None and old == new else new
