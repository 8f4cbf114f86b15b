"""Source: where objects come from. Kubernetes, a folder of manifests, the operator; and the store that merges them.

A source never reports a list that failed or is empty as "everything was deleted": what was there stays, `problems` says so,
and `trusted` is false until a good list is there again. While it is, a restarted agent takes nothing away that may be of its
objects (doubt.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from lbagent.objects.records import (
    FIELD_OF_KIND,
    Endpoints,
    EndpointSlice,
    KubeObject,
    Message,
    ObjectChange,
    ObjectSnapshot,
    Pod,
    Service,
)

OnChange = Callable[[Sequence[ObjectChange]], None]


class Source(Protocol):
    """One origin of objects.

    `synced` is set after the first full list, also when that failed or was empty. `trusted` says whether what the last list
    did not hold is really gone.
    """

    name: str
    synced: asyncio.Event

    @property
    def trusted(self) -> bool:
        """Whether the last list was good and not empty."""

    def snapshot(self) -> ObjectSnapshot:
        """Return every object of this source now."""

    def problems(self) -> Sequence[Message]:
        """Return what is wrong now, in a stable order."""

    async def run(self, changed: OnChange) -> None:
        """List, then watch until cancelled; call `changed` from the event loop with each batch of changes.

        The first call after the list holds every object; also called with an empty batch when only `problems` changed.
        """


class Store:
    """The objects of all sources. The same object in two sources: the source that was named first holds."""

    def __init__(self, sources: Iterable[str]) -> None:
        """Name the sources, in the order in which they win."""
        self._objects: dict[str, dict[tuple[str, str], KubeObject]] = {name: {} for name in sources}

    def apply(self, source: str, changes: Iterable[ObjectChange]) -> list[ObjectChange]:
        """Take the changes of a source; return what changes for everybody."""
        mine = self._objects[source]
        out = []
        for change in changes:
            key = (change.kind, change.key)
            old = self._effective(key)
            if change.new is None:
                mine.pop(key, None)
            else:
                mine[key] = change.new
            new = self._effective(key)
            if old is not new:
                out.append(ObjectChange(change.kind, change.key, old, new))
        return out

    def _effective(self, key: tuple[str, str]) -> KubeObject | None:
        for objects in self._objects.values():
            if key in objects:
                return objects[key]
        return None

    def services_of(self, sources: Iterable[str]) -> set[str]:
        """Return the keys of the Services (and Pods) of which these sources hold a part."""
        found = set()
        for source in sources:
            for obj in self._objects[source].values():
                if isinstance(obj, EndpointSlice):
                    found.add(obj.service_key)
                elif isinstance(obj, Service | Endpoints | Pod):
                    found.add(obj.key)
        return found

    def sliced(self) -> set[str]:
        """Return the keys of the Services whose endpoints any source names, also when there are none."""
        found = set()
        for objects in self._objects.values():
            for obj in objects.values():
                if isinstance(obj, EndpointSlice):
                    found.add(obj.service_key)
                elif isinstance(obj, Endpoints):
                    found.add(obj.key)
        return found

    def snapshot(self) -> ObjectSnapshot:
        """Return everything, merged."""
        kinds: dict[str, dict[str, KubeObject]] = {field: {} for field in FIELD_OF_KIND.values()}
        for objects in self._objects.values():
            for (kind, key), obj in objects.items():
                kinds[FIELD_OF_KIND[kind]].setdefault(key, obj)
        return ObjectSnapshot(**kinds)  # type: ignore[arg-type]


def initial_changes(objects: ObjectSnapshot) -> list[ObjectChange]:
    """Return a snapshot as the changes from nothing."""
    return [ObjectChange(kind, key, None, obj) for kind in FIELD_OF_KIND for key, obj in objects.of_kind(kind).items()]
