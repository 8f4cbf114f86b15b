"""Backends, their states, and the allowed transitions.

Source: cilium pkg/loadbalancer (behaviour), with one difference: a backend in maintenance whose pod Kubernetes terminates
may become terminating, or it could never be removed gracefully.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from lbagent.errors import ConfigError, InvalidTransition
from lbagent.model.address import L3n4Addr

MAX_WEIGHT = 65535  # u16 of Cilium's backend weight
DEFAULT_BACKEND_WEIGHT = 100


class UnknownState(ConfigError, ValueError):
    """A word that is no backend state."""


class BackendState(IntEnum):
    """The state of a backend. The numbers 0-3 are the BPF flags; a lower number is more alive."""

    ACTIVE = 0  # takes new flows
    TERMINATING = 1  # Kubernetes removes it: keeps its flows; new ones only when no backend is active
    QUARANTINED = 2  # a health check failed: no new flows, still checked
    MAINTENANCE = 3  # set by the operator, or weight 0: no new flows, not checked, no slot
    INVALID = 4  # reports an error; never written to a map

    __hash__ = int.__hash__

    @property
    def text(self) -> str:
        """The word of the command line, map dump and API; '' for INVALID."""
        return _TEXTS[self]

    def __str__(self) -> str:
        """Return `text`."""
        return self.text

    def __format__(self, spec: str) -> str:
        """Format `text`, not the number."""
        return format(self.text, spec)

    @classmethod
    def parse(cls, text: str) -> BackendState:
        """Return the state of a word in any case; '' is ACTIVE. Raises UnknownState (a ValueError) for another word."""
        word = text.lower()
        if not word:
            return cls.ACTIVE
        for state in _VALID:
            if state.text == word:
                return state
        raise UnknownState(f"unknown backend state {text!r}; use one of {', '.join(s.text for s in _VALID)}")

    @classmethod
    def is_valid(cls, text: str) -> bool:
        """Return whether `parse` accepts the word; it accepts ''."""
        try:
            cls.parse(text)
        except UnknownState:
            return False
        return True

    def to_flags(self) -> int:
        """Return the `flags` byte of a backend entry. Raises ValueError for INVALID, which no entry may hold."""
        if self is BackendState.INVALID:
            raise ValueError("an invalid backend state has no flags")
        return int(self)

    @classmethod
    def from_flags(cls, flags: int) -> BackendState:
        """Return the state of a `flags` byte: an enumeration, not a bit set; an unknown value is ACTIVE."""
        return cls(flags) if 0 <= flags <= 3 else cls.ACTIVE

    def can_become(self, new: BackendState) -> bool:
        """Return whether `new` may follow; every state may stay unchanged."""
        return new is self or new in _TRANSITIONS[self]


_TEXTS = {state: "" if state is BackendState.INVALID else state.name.lower() for state in BackendState}
_VALID = (BackendState.ACTIVE, BackendState.TERMINATING, BackendState.QUARANTINED, BackendState.MAINTENANCE)
_TRANSITIONS: dict[BackendState, frozenset[BackendState]] = {
    BackendState.ACTIVE: frozenset({BackendState.TERMINATING, BackendState.QUARANTINED, BackendState.MAINTENANCE}),
    BackendState.TERMINATING: frozenset(),
    BackendState.QUARANTINED: frozenset({BackendState.ACTIVE, BackendState.TERMINATING}),
    BackendState.MAINTENANCE: frozenset({BackendState.ACTIVE, BackendState.TERMINATING}),
    BackendState.INVALID: frozenset(),
}


def is_valid_backend_state(text: str) -> bool:
    """Return whether `BackendState.parse` accepts the word."""
    return BackendState.is_valid(text)


def is_valid_state_transition(old: BackendState, new: BackendState) -> bool:
    """Return whether a backend in `old` may change to `new`."""
    return old.can_become(new)


class _Identified(Struct, frozen=True, gc=False):
    """The fields of a Backend that are allowed as positional arguments."""

    id: int = 0
    address: L3n4Addr = L3n4Addr(bytes(4), 0)
    state: BackendState = BackendState.ACTIVE


class Backend(_Identified, frozen=True, gc=False, kw_only=True):
    """A server behind a service. `id` 0 means not yet assigned; weights are 0-65535; `local` = on this node."""

    weight: int = DEFAULT_BACKEND_WEIGHT
    node_name: str = ""
    zone: str = ""
    preferred: bool = False
    fe_port_name: str = ""
    local: bool = False
    gone: bool = False  # from the slices of its Service, which keeps its flows (model/stale_flows.py)

    def with_state(self, new: BackendState) -> Self:
        """Return the backend in another state. Raises InvalidTransition with both."""
        if new is self.state:
            return self
        if not self.state.can_become(new):
            subject = f"backend {self.address.with_protocol()}"
            raise InvalidTransition(self.state.text or "invalid", new.text or "invalid", subject)
        return replace(self, state=new)
