"""Which connections end when Services change. Pure.

Those to a backend that no Service has, and UDP of a frontend that a backend left.

TCP to a backend that another Service still has continues, as with bpf: the backend lives. A backend that is only withdrawn
(terminating, maintenance, quarantined) is still a backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lbagent.model.address import L3n4Addr, L4Type, Scope
from lbagent.model.service import SVC
from lbagent.net.conntrack import Ended
from lbagent.targets.nftables.map_specs import MAPS, PORT, PROTOCOL, WORD, Element, MapSpec
from lbagent.targets.nftables.rule_set import Elements

_Backends = tuple[L3n4Addr, ...]  # of one frontend, each once: a set took three times the memory


class BackendUse:
    """Counts by how many Services each backend is used, and finds what ended since `take`."""

    def __init__(self) -> None:
        self._used: Counter[L3n4Addr] = Counter()
        self._frontends: dict[L3n4Addr, _Backends] = {}
        self._gone: set[L3n4Addr] = set()  # may have left all Services
        self._left: set[Ended] = set()

    def change(self, old: Iterable[SVC], new: Iterable[SVC]) -> None:
        """Take the rows of a Service before and after a change."""
        before, after = _backends(old), _backends(new)
        had = {backend for found in before.values() for backend in found}
        has = {backend for found in after.values() for backend in found}
        for backend in has - had:
            self._used[backend] += 1
        for backend in had - has:
            self._used[backend] -= 1
            if not self._used[backend]:
                del self._used[backend]
                self._gone.add(backend)
        for frontend in before.keys() - after.keys():
            self._frontends.pop(frontend, None)
        self._frontends |= after
        for frontend, found in before.items():
            if frontend.protocol is L4Type.TCP and frontend in after:
                continue
            still = frozenset(after.get(frontend, ()))
            self._left.update(Ended(backend, frontend) for backend in found if backend not in still)

    def add_left(self, found: Elements) -> None:
        """Take the backends that the table has of an earlier agent."""
        for spec in MAPS.values():
            if spec.has_slot:
                for key, element in found[spec.name].items():
                    backend, frontend = _of_slot(spec, key, element)
                    if backend not in self._used:
                        self._gone.add(backend)
                    elif backend.protocol is not L4Type.TCP and backend not in self._frontends.get(frontend, ()):
                        self._left.add(Ended(backend, frontend))

    def take(self) -> set[Ended]:
        """Return what ended, and forget it."""
        found = {Ended(backend) for backend in self._gone if backend not in self._used}
        gone = {each.backend for each in found}
        found.update(each for each in self._left if each.backend not in gone)
        self._gone, self._left = set(), set()
        return found


def _of_slot(spec: MapSpec, key: bytes, element: Element) -> tuple[L3n4Addr, L3n4Addr]:
    """Return the backend and the frontend of a slot."""
    parts, width = dict(spec.split(key)), spec.family.address_bytes
    protocol = L4Type.from_number(parts[PROTOCOL][0])
    value = element.value if isinstance(element.value, bytes) else bytes(width + WORD)
    backend = L3n4Addr(value[:width], int.from_bytes(value[width : width + 2], "big"), protocol)
    return backend, L3n4Addr(key[:width], int.from_bytes(parts[PORT], "big"), protocol)


def _backends(rows: Iterable[SVC]) -> dict[L3n4Addr, _Backends]:
    """Return the backends of each frontend, those of both scopes together."""
    found: dict[L3n4Addr, _Backends] = {}
    for row in rows:
        if not row.wildcard:
            frontend = row.frontend.with_scope(Scope.EXTERNAL)
            backends = tuple([backend.address for backend in row.backends])
            found[frontend] = tuple(dict.fromkeys(found[frontend] + backends)) if frontend in found else backends
    return found
