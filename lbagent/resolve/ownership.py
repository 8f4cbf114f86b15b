"""Which Service gets a frontend that several want: the older one (creationTimestamp, then namespace/name).

A Service without a creationTimestamp counts as younger than any that has one. Order of events does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.model.address import L3n4Addr
from lbagent.objects.records import Service


def seniority(service: Service) -> tuple[bool, float, str, str]:
    """Return the sort key of age: the smaller is the older."""
    return (not service.created, service.created, service.namespace, service.name)


class Ownership:
    """The frontends that Services want, by frontend; most are wanted by one."""

    def __init__(self) -> None:
        self._wanted: dict[str, tuple[L3n4Addr, ...]] = {}  # service key -> what it wants
        self._owner: dict[L3n4Addr, str] = {}  # the only, or the winning, service key
        self._contested: dict[
            L3n4Addr, dict[str, tuple[bool, float, str, str]]
        ] = {}  # every Service that wants it, with its age
        self._age: dict[str, tuple[bool, float, str, str]] = {}

    def owner(self, frontend: L3n4Addr) -> str | None:
        """Return the key of the Service that has the frontend."""
        return self._owner.get(frontend)

    def update(self, key: str, service: Service | None, frontends: Iterable[L3n4Addr]) -> set[str]:
        """Replace what a Service wants; return the other Services that won or lost a frontend by it."""
        new = tuple(frontends)
        old = self._wanted.get(key, ())
        age = seniority(service) if service else None
        if new == old and age == self._age.get(key):
            return set()
        touched: set[str] = set()
        kept = set(new)
        for frontend in old:
            if frontend not in kept:
                touched |= self._leave(frontend, key)
        if age is not None:
            self._age[key] = age
            for frontend in new:
                touched |= self._enter(frontend, key, age)
        if new:
            self._wanted[key] = new
        else:
            self._wanted.pop(key, None)
            self._age.pop(key, None)
        touched.discard(key)
        return touched

    def _leave(self, frontend: L3n4Addr, key: str) -> set[str]:
        rivals = self._contested.get(frontend)
        if rivals is None:
            del self._owner[frontend]
            return set()
        del rivals[key]
        self._owner[frontend] = min(rivals, key=rivals.__getitem__)
        if len(rivals) == 1:
            del self._contested[frontend]
        return set(rivals)

    def _enter(self, frontend: L3n4Addr, key: str, age: tuple[bool, float, str, str]) -> set[str]:
        holder = self._owner.setdefault(frontend, key)
        if holder == key and frontend not in self._contested:
            return set()
        rivals = self._contested.setdefault(frontend, {holder: self._age[holder]})
        if rivals.get(key) == age:
            return set()
        rivals[key] = age
        self._owner[frontend] = min(rivals, key=rivals.__getitem__)
        return set(rivals)
