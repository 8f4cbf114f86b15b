"""Which backends a State has for a client and a frontend, and which it had a moment ago. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.service import SVC, SVCType
from lbagent.model.state import State

CHANGE_S = 5.0  # seconds in which the other proxy, or this agent, may be behind


class Expected(NamedTuple):
    """What lbagent would do: choose one of these, or (none) refuse, and why."""

    row: SVC
    backends: frozenset[L3n4Addr]
    why: str


class ExpectedBackends:
    """The frontends of the last State. `is_inside` returns whether an address is a Pod's of this node, or the node's own."""

    def __init__(self, is_inside: Callable[[bytes], bool]) -> None:
        self.is_inside = is_inside
        self._rows: Mapping[L3n4Addr, SVC] = {}
        self._backends: dict[int, frozenset[L3n4Addr]] = {}  # by id(SVC): made for the first flow
        self._former: dict[L3n4Addr, tuple[float, frozenset[L3n4Addr]]] = {}  # until when, and which

    def take(self, state: State, now: float) -> None:
        """Take a State; frontends that changed keep their former backends for CHANGE_S."""
        before, self._rows = self._rows, state.by_frontend
        for frontend, row in before.items():
            if self._rows.get(frontend) is not row:
                self._former[frontend] = now + CHANGE_S, self._backends_of(row)
        for frontend in self._rows.keys() - before.keys():
            self._former[frontend] = now + CHANGE_S, frozenset()
        self._former = {key: each for key, each in self._former.items() if each[0] > now}
        known = {id(row) for row in self._rows.values()}
        self._backends = {key: each for key, each in self._backends.items() if key in known}

    def of(self, client: L3n4Addr, frontend: L3n4Addr) -> Expected | None:
        """Return what would be done; None for what is no frontend."""
        row = self._rows.get(frontend)
        if row is None:
            return None
        if self.is_inside(client.address):
            inside = self._rows.get(frontend.with_scope(Scope.INTERNAL), row)
            row = row if _skips(inside, client.address) else inside
        if row.passes_untouched:
            return None
        if row.check_source_range and not _is_admitted(row, client.address):
            return Expected(row, frozenset(), "its source ranges refuse the client")
        backends = self._backends_of(row)
        return Expected(row, backends, "" if backends else "no backend takes new flows")

    def is_changing(self, frontend: L3n4Addr, now: float) -> bool:
        """Return whether the frontend, or its backends, changed a moment ago."""
        keys = (frontend, frontend.with_scope(Scope.INTERNAL))
        return any(key in self._former and self._former[key][0] > now for key in keys)

    def _backends_of(self, row: SVC) -> frozenset[L3n4Addr]:
        known = self._backends.get(id(row))
        if known is None:
            known = self._backends[id(row)] = frozenset(backend.address for backend in row.selectable)
        return known


def _skips(row: SVC, client: bytes) -> bool:
    """Return whether a client is a pod of a local redirect that does not apply to its own pods."""
    return row.type is SVCType.LOCAL_REDIRECT and row.check_source_range and not _is_admitted(row, client)


def _is_admitted(row: SVC, client: bytes) -> bool:
    return any(cidr.contains(client) for cidr in row.source_ranges) is not row.source_ranges_deny
