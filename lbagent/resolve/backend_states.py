"""The state of a backend that several Services share: of its states in each, the first of active, terminating, quarantined, ...

Its slot and COUNT in each Service follow that Service's own slice; only the state, which is in one entry for all, is shared.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.service import SVC

_NONE: dict[L3n4Addr, BackendState] = {}
_NO_OWNERS: frozenset[str] = frozenset()
_ACTIVE = BackendState.ACTIVE  # the most alive: it takes precedence over every other state
_NOT_ACTIVE = frozenset(BackendState) - {_ACTIVE}


class SharedStates:
    """The owners (Services, Pods) of each backend, with its state in each. Nearly every backend has one owner, and is ACTIVE."""

    def __init__(self) -> None:
        self._users: dict[L3n4Addr, str | tuple[str, ...]] = {}
        self._shared: set[L3n4Addr] = set()  # backends with several users
        self._used: dict[str, tuple[L3n4Addr, ...]] = {}  # owner -> its backends
        self._states: dict[str, dict[L3n4Addr, BackendState]] = {}  # owner -> those that are not ACTIVE
        self._filtered_out: dict[L3n4Addr, set[str]] = {}  # owners that filter out a backend without an entry
        self._filtered_out_by: dict[str, tuple[L3n4Addr, ...]] = {}

    def has(self, address: L3n4Addr) -> bool:
        """Return whether any Service or Pod has an SVC with this backend."""
        return address in self._users

    def users_of(self, address: L3n4Addr) -> tuple[str, ...]:
        """Return the owners that have an SVC with this backend."""
        users = self._users.get(address, ())
        return (users,) if isinstance(users, str) else users

    def update(
        self, owner: str, frontends: Iterable[SVC], filtered_out: Iterable[L3n4Addr] = ()
    ) -> tuple[set[str], set[str]]:
        """Store the SVCs of an owner, and the backends it filtered out, which it keeps for live flows once they have an entry.

        Return two sets of owners to build again: those that share a backend whose state may have changed, and those that filtered
        out a backend which has an entry now.
        """
        states: dict[L3n4Addr, BackendState] = {}
        seen: set[int] = set()
        for svc in frontends:
            for group in (svc.selectable, svc.unselectable, svc.slotless):
                if id(group) in seen:  # frontends of one port share their groups
                    continue
                seen.add(id(group))
                if not _NOT_ACTIVE.intersection([backend.state for backend in group]):
                    states.update(dict.fromkeys([backend.address for backend in group], _ACTIVE))
                    continue
                for backend in group:
                    state, known = backend.state, states.get(backend.address)
                    if known is None or state < known:
                        states[backend.address] = state
        waiting = tuple(address for address in filtered_out if address not in states)
        self._wait(owner, waiting)
        touched, served_now = self._replace(owner, states)
        if not self._users.keys().isdisjoint(waiting):  # another owner of the same batch added the entry
            served_now.add(owner)
        return touched, served_now

    def _wait(self, owner: str, filtered_out: tuple[L3n4Addr, ...]) -> None:
        for address in self._filtered_out_by.pop(owner, ()):
            waiting = self._filtered_out[address]
            waiting.discard(owner)
            if not waiting:
                del self._filtered_out[address]
        if filtered_out:
            self._filtered_out_by[owner] = filtered_out
            for address in filtered_out:
                self._filtered_out.setdefault(address, set()).add(owner)

    def _replace(self, owner: str, states: dict[L3n4Addr, BackendState]) -> tuple[set[str], set[str]]:
        touched: set[str] = set()
        served_now: set[str] = set()
        for address in self._used.get(owner, ()):
            if address not in states:
                touched |= self._leave(address, owner)
        users, waited = self._users, self._filtered_out
        if users.keys().isdisjoint(states):  # the usual case: no step for each of the 200,000 of a start
            users.update(dict.fromkeys(states, owner))
            new: Iterable[L3n4Addr] = states
        else:
            new = [address for address in states if address not in users]
            for address in states:
                touched.update(self._enter(address, owner))
        if waited:
            served_now.update(*(waited.get(address, _NO_OWNERS) for address in new))
        if states:
            self._used[owner] = tuple(states)
            self._states[owner] = {a: s for a, s in states.items() if s is not _ACTIVE} or _NONE
        else:
            self._used.pop(owner, None)
            self._states.pop(owner, None)
        touched.discard(owner)
        return touched, served_now

    def _enter(self, address: L3n4Addr, owner: str) -> tuple[str, ...]:
        """Add a user of a backend; return its users if there are several."""
        users = self._users
        now = users.setdefault(address, owner)
        if now == owner:
            return ()
        self._shared.add(address)
        if isinstance(now, str):
            now = users[address] = tuple(sorted((now, owner)))
        elif owner not in now:
            now = users[address] = tuple(sorted((*now, owner)))
        return now

    def _leave(self, address: L3n4Addr, owner: str) -> set[str]:
        users = self._users[address]
        if isinstance(users, str):
            del self._users[address]
            return set()
        rest = tuple(user for user in users if user != owner)
        self._users[address] = rest[0] if len(rest) == 1 else rest
        if len(rest) == 1:
            self._shared.discard(address)
        return set(rest)

    def with_shared_states(self, owner: str, frontends: tuple[SVC, ...]) -> tuple[SVC, ...]:
        """Return the SVCs with the shared states of their backends; the same object when none differs."""
        changed: dict[L3n4Addr, BackendState] = {}
        if not self._states.get(owner) and self._shared.isdisjoint(self._used.get(owner, ())):
            return frontends  # all are ACTIVE and without another user
        for address in self._used.get(owner, ()):
            users = self._users[address]
            if not isinstance(users, str):
                changed[address] = min(self._states[user].get(address, BackendState.ACTIVE) for user in users)
            elif (own := self._states[owner].get(address)) is not None:
                changed[address] = own  # two SVCs of one owner may differ (filtered here, quarantined there)
        if not changed:
            return frontends
        return tuple(_with_states(svc, changed) for svc in frontends)


def _with_states(svc: SVC, states: dict[L3n4Addr, BackendState]) -> SVC:
    groups = [
        tuple(_with_state(backend, states) for backend in group)
        for group in (svc.selectable, svc.unselectable, svc.slotless)
    ]
    return replace(svc, selectable=groups[0], unselectable=groups[1], slotless=groups[2])


def _with_state(backend: Backend, states: dict[L3n4Addr, BackendState]) -> Backend:
    state = states.get(backend.address, backend.state)
    return backend if state is backend.state else replace(backend, state=state)
