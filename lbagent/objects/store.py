"""Store: the objects of all sources, merged into one set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lbagent.objects.records import (
    FIELD_OF_KIND,
    EndpointSlice,
    KubeObject,
    Node,
    ObjectChange,
    ObjectSnapshot,
)

_KINDS_WITH_ROWS = ("Pod", "LocalRedirectPolicy", "CiliumLocalRedirectPolicy")  # beside Services
_KINDS_OF_FACTS = frozenset({"Endpoints", "EndpointSlice", "Node"})
_Kinds = dict[str, dict[str, KubeObject]]  # objects by key, by kind


class Store:
    """The objects of all sources. If two sources have the same object, the one configured first takes precedence."""

    def __init__(self, sources: Iterable[str]) -> None:
        """`sources` are their names in the order of precedence."""
        self._objects: dict[str, _Kinds] = {name: {kind: {} for kind in FIELD_OF_KIND} for name in sources}
        self._facts: tuple[frozenset[bytes], frozenset[str]] | None = None

    def apply(self, source: str, changes: Iterable[ObjectChange]) -> list[ObjectChange]:
        """Take the changes of a source; return the changes of the merged set."""
        own = self._objects[source]
        out = []
        for change in changes:
            kind, key = change.kind, change.key
            old = self.get(kind, key)
            if self._facts is not None and kind in _KINDS_OF_FACTS and _is_fact(own[kind].get(key), change.new):
                self._facts = None
            if change.new is None:
                own[kind].pop(key, None)
            else:
                own[kind][key] = change.new
            new = self.get(kind, key)
            if old is not new:
                out.append(ObjectChange(kind, key, old, new, change.triggered_at))
        return out

    def get(self, kind: str, key: str) -> KubeObject | None:
        """Return an object of the merged set, None if there is none."""
        for kinds in self._objects.values():
            if (found := kinds[kind].get(key)) is not None:
                return found
        return None

    def services_of(self, sources: Iterable[str]) -> set[str]:
        """Return the keys of the Services (Pods, local redirects) of which these sources have a part."""
        found = set[str]()
        for source in sources:
            kinds = self._objects[source]
            found |= _services_of_slices(kinds)
            found.update(
                obj.key for kind in ("Service", "Endpoints", *_KINDS_WITH_ROWS) for obj in kinds[kind].values()
            )
        return found

    def held_only_by(self, sources: Collection[str]) -> tuple[set[str], set[str]]:
        """Return the keys of the Services (Pods, local redirects), and of those with endpoints, that no other source has."""
        if not sources:
            return set(), set()
        services: dict[bool, set[str]] = {True: set(), False: set()}
        endpoints: dict[bool, set[str]] = {True: set(), False: set()}
        for source, kinds in self._objects.items():
            is_one = source in sources
            others = {obj.key for kind in _KINDS_WITH_ROWS for obj in kinds[kind].values()}
            services[is_one] |= others | {obj.key for obj in kinds["Service"].values()}
            endpoints[is_one] |= others | _services_of_slices(kinds) | {obj.key for obj in kinds["Endpoints"].values()}
        return services[True] - services[False], endpoints[True] - endpoints[False]

    def services_with_endpoints(self) -> set[str]:
        """Return the keys of the Services with an endpoint object in any source, also an empty one."""
        found = set[str]()
        for kinds in self._objects.values():
            found |= _services_of_slices(kinds)
            found.update(obj.key for obj in kinds["Endpoints"].values())
        return found

    def node_addresses(self) -> frozenset[bytes]:
        """Return the InternalIPs of every Node."""
        nodes = (node for kinds in self._objects.values() for node in kinds["Node"].values())
        return frozenset(address for node in nodes if isinstance(node, Node) for address in node.internal_ips)

    def facts(self) -> tuple[frozenset[bytes], frozenset[str]]:
        """Return `node_addresses` and `services_with_endpoints`: the same objects while neither can have changed."""
        if self._facts is None:
            self._facts = self.node_addresses(), frozenset(self.services_with_endpoints())
        return self._facts

    def snapshot(self) -> ObjectSnapshot:
        """Return all objects, merged."""
        merged: dict[str, dict[str, KubeObject]] = {}
        for kind, field in FIELD_OF_KIND.items():
            merged[field] = {}
            for kinds in self._objects.values():
                known = merged[field]
                merged[field] = known | (kinds[kind] if not known else _without(kinds[kind], known))
        return ObjectSnapshot(**merged)  # type: ignore[arg-type]


def _without(objects: Mapping[str, KubeObject], known: Mapping[str, KubeObject]) -> dict[str, KubeObject]:
    return {key: obj for key, obj in objects.items() if key not in known}


def _is_fact(old: KubeObject | None, new: KubeObject | None) -> bool:
    """Return whether a change of one object may change `Store.facts`."""
    if isinstance(old, EndpointSlice) and isinstance(new, EndpointSlice):
        return old.service != new.service
    return old is None or new is None or isinstance(new, Node)


def _services_of_slices(kinds: _Kinds) -> set[str]:
    return {obj.service_key for obj in kinds["EndpointSlice"].values() if isinstance(obj, EndpointSlice)}
