"""A resolver that receives single changes, and its results."""

from __future__ import annotations

from typing import Any

from lbagent.model.service import SVC
from lbagent.objects.records import KubeObject, ObjectChange
from lbagent.resolve import Options, Resolver
from tests.objects.kinds import kind_of


class Watched:
    """A resolver that receives single changes, as from a source."""

    def __init__(self, *objects: KubeObject, **options: Any) -> None:
        self.resolver = Resolver(Options(**{"node_name": "n1"} | options))
        self.known: dict[tuple[str, str], KubeObject] = {}
        self.put(*objects)

    def put(self, *objects: KubeObject) -> None:
        for obj in objects:
            place = (kind_of(obj), obj.key)
            self.resolver.update([ObjectChange(*place, self.known.get(place), obj)])
            self.known[place] = obj

    def drop(self, obj: KubeObject) -> None:
        place = (kind_of(obj), obj.key)
        self.resolver.update([ObjectChange(*place, self.known.pop(place), None)])

    def backends(self, port: int = 80) -> dict[int, tuple[int, str]]:
        """Return weight and state of each backend behind a frontend port, by the last byte of its address."""
        rows = self.resolver.resolve().state.services
        found = [backend for svc in rows if svc.frontend.port == port for backend in svc.backends]
        return {backend.address.address[-1]: (backend.weight, backend.state.text) for backend in found}

    def weights(self) -> dict[int, int]:
        return {host: weight for host, (weight, _) in self.backends().items()}

    def rows(self) -> dict[str, SVC]:
        """Return the rows by frontend."""
        return {svc.frontend.with_protocol(): svc for svc in self.resolver.resolve().state.services}

    def hosts(self, frontend: str) -> list[list[int]]:
        """Return the last bytes of the backends' addresses: those that take new flows, other slots, those without one."""
        svc = self.rows()[frontend]
        return [
            [each.address.address[3] for each in group] for group in (svc.selectable, svc.unselectable, svc.slotless)
        ]

    def frontends(self) -> list[str]:
        return [str(svc.frontend) for svc in self.resolver.resolve().state.services]

    def messages(self) -> list[str]:
        return [str(message) for message in self.resolver.resolve().messages]
