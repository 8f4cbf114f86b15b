"""Fair shares of the maps that frontends can be short of: how many entries of each a namespace has, and may have. Pure.

Source of the rule: lbagent/model/fair_share.py. A plan counts shares only where it would fill a map beyond the guard, with what
waits for room: all other plans cost nothing more. Entries that go with the plan are of no namespace. In a first round each
namespace grows as far as all of them can at once; in a second one, what is left of that goes to those within their share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct

from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative
from lbagent.model.fair_share import allowed_entries, fair_targets, guard_of
from lbagent.model.id_claims import namespace_of
from lbagent.model.service import MAX_SLOTS, SVC
from lbagent.model.state import State
from lbagent.targets.bpf.shadow import LIMITED_MAPS, Limited, Shadow, limited_counts

_NONE: Limited = (0, 0, 0)
Key = TypeVar("Key")


class _Table(Struct):
    """One map of which more is wanted than is given without shares, by namespace."""

    held: dict[str, int]  # and still wanted; what this plan gives is added
    allowed: Mapping[str, int]
    targets: Mapping[str, int]  # the share; not below `allowed`


class MapShares:
    """The shares of the namespaces while a plan is made. A map that is not in them is given without a look at shares."""

    def __init__(self, tables: dict[str, _Table]) -> None:
        self._tables = tables

    def __contains__(self, map_name: str) -> bool:
        """Return whether a map has shares."""
        return map_name in self._tables

    def held(self, map_name: str, namespace: str) -> int:
        """Return how many entries a namespace has and wants, with those that this plan gives it."""
        return self._tables[map_name].held.get(namespace, 0)

    def share(self, map_name: str, namespace: str) -> int:
        """Return up to how many entries a namespace may grow."""
        return self._tables[map_name].targets.get(namespace, 0)

    def room(self, map_name: str, namespace: str) -> tuple[int, int]:
        """Return how many entries a namespace may get in the first round, and in all."""
        table = self._tables[map_name]
        held = table.held.get(namespace, 0)
        return table.allowed.get(namespace, 0) - held, table.targets.get(namespace, 0) - held

    def rooms(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return `room` by map and namespace."""
        return {
            (name, namespace): self.room(name, namespace)
            for name, table in self._tables.items()
            for namespace in table.targets
        }

    def take(self, map_name: str, namespace: str, entries: int) -> None:
        """Add to the entries of a namespace."""
        if table := self._tables.get(map_name):
            table.held[namespace] = table.held.get(namespace, 0) + entries


def wanted_counts(svc: SVC) -> Limited:
    """Return how many entries of each of the `LIMITED_MAPS` a frontend needs; no more slots than there can be."""
    slots, matches, ranges = limited_counts(svc)
    return min(slots, MAX_SLOTS + 1), min(matches, MAX_SLOTS), ranges


def deferred_wants(desired: State, shadow: Shadow) -> dict[str, int]:
    """Return how many entries beyond those that they have the frontends need that are left out of this plan, by map."""
    found: dict[str, int] = {}
    for frontend in shadow.deferred:
        svc = desired.by_frontend.get(frontend)
        if svc is None:
            continue
        entry = shadow.frontends.get(frontend)
        have = _NONE if entry is None else limited_counts(entry)
        for name, wants, has in zip(LIMITED_MAPS[frontend.family], wanted_counts(svc), have, strict=True):
            if wants > has:
                found[name] = found.get(name, 0) + wants - has
    return found


def fit_without_shares(shadow: Shadow, waiting: Mapping[str, int]) -> bool:
    """Return whether what waits fits below the guard, beside all that the maps hold."""
    return all(
        shadow.used.get(name, 0) + entries <= guard_of(shadow.specs[name].max_entries)
        for name, entries in waiting.items()
    )


def counting(desired: State, shadow: Shadow) -> Cooperative[MapShares]:
    """Count what the namespaces of a State have and want; return the shares of the maps that cannot hold it."""
    held: dict[str, dict[str, int]] = {}
    wanted: dict[str, dict[str, int]] = {}
    frontends = shadow.frontends
    for at, svc in enumerate(desired.services):
        if not at % BETWEEN_YIELDS:
            yield
        wants, entry = wanted_counts(svc), frontends.get(svc.frontend)
        have = _NONE if entry is None else wants if entry is svc else limited_counts(entry)
        namespace = namespace_of(svc.name)
        for name, number, has in zip(LIMITED_MAPS[svc.frontend.family], wants, have, strict=True):
            if number:
                _add(wanted.setdefault(name, {}), namespace, number)
                _add(held.setdefault(name, {}), namespace, min(number, has))
    tables = {}
    for name, numbers in wanted.items():
        limit, used = shadow.specs[name].max_entries, held[name]
        numbers = dict(sorted(numbers.items()))  # an odd entry does not go by the order of the State
        if len(numbers) > 1 and sum(numbers.values()) > guard_of(limit):
            tables[name] = _Table(used, allowed_entries(limit, used, numbers), fair_targets(limit, used, numbers))
    return MapShares(tables)


def _add(counts: dict[Key, int], key: Key, number: int) -> None:
    counts[key] = counts.get(key, 0) + number
