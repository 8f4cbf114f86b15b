"""Store: the objects of all sources, merged into one set."""

from __future__ import annotations

from collections.abc import Iterable

from lbagent.objects.records import (
    FIELD_OF_KIND,
    Endpoints,
    EndpointSlice,
    KubeObject,
    ObjectChange,
    ObjectSnapshot,
    Pod,
    Service,
)


class Store:
    """The objects of all sources. The same object in two sources: the source that was named first holds."""

    def __init__(self, sources: Iterable[str]) -> None:
        """`sources` are their names in the order in which they win."""
        self._objects: dict[str, dict[tuple[str, str], KubeObject]] = {name: {} for name in sources}

    def apply(self, source: str, changes: Iterable[ObjectChange]) -> list[ObjectChange]:
        """Take the changes of a source; return what changes in the merged set."""
        own = self._objects[source]
        out = []
        for change in changes:
            key = (change.kind, change.key)
            old = self._effective(key)
            if change.new is None:
                own.pop(key, None)
            else:
                own[key] = change.new
            new = self._effective(key)
            if old is not new:
                out.append(ObjectChange(change.kind, change.key, old, new, change.triggered_at))
        return out

    def _effective(self, key: tuple[str, str]) -> KubeObject | None:
        for objects in self._objects.values():
            if key in objects:
                return objects[key]
        return None

    def get(self, kind: str, key: str) -> KubeObject | None:
        """Return an object of the merged set, None when there is none."""
        return self._effective((kind, key))

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

    def services_with_endpoints(self) -> set[str]:
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
