"""The state that BackendStates set for a backend, and which of them applies when there are several.

The operator's BackendStates take precedence over those of every other source; then the order of the sources decides, then the
order of the objects. In one source, a state of an address takes precedence over that of the Pod behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.message import Message
from lbagent.objects.records import OPERATOR, StateOverride


class _Ranked(NamedTuple):
    """A BackendState and the rank of its source; 0 is the highest."""

    rank: int
    override: StateOverride


class Overrides(Struct, frozen=True, gc=False):
    """The effective states, by address and by the key of a Pod."""

    by_address: Mapping[L3n4Addr, _Ranked] = MappingProxyType({})
    by_pod: Mapping[str, _Ranked] = MappingProxyType({})

    def __bool__(self) -> bool:
        """Whether any backend has a state set."""
        return bool(self.by_address or self.by_pod)

    def state_of(self, address: L3n4Addr, pod: str) -> BackendState | None:
        """Return the state set for a backend whose endpoint refers to this Pod ('' = none); None if there is none."""
        holds = self.effective(address, pod)
        return holds.state if holds is not None else None

    def effective(self, address: L3n4Addr, pod: str) -> StateOverride | None:
        """Return the effective BackendState for a backend whose endpoint refers to this Pod ('' = none)."""
        of_address = self.by_address.get(address)
        of_pod = self.by_pod.get(pod)
        if of_pod is not None and (of_address is None or of_pod.rank < of_address.rank):
            return of_pod.override
        return of_address.override if of_address is not None else None

    def is_operators(self, address: L3n4Addr, pod: str) -> bool:
        """Return whether the operator set the effective state of a backend: no health check changes it."""
        holds = self.effective(address, pod)
        return holds is not None and holds.origin.source == OPERATOR

    def of_addresses(self) -> dict[L3n4Addr, BackendState]:
        """Return the states set for single addresses."""
        return {address: ranked.override.state for address, ranked in self.by_address.items()}


class Contradiction(NamedTuple):
    """Two BackendStates set different states for the same backends: the first applies, the other has no effect."""

    holds: StateOverride
    ignored: StateOverride

    def message(self) -> Message:
        """Return the warning about the one without effect."""
        holds, ignored = self
        problem = f"BackendState {holds.name} ({holds.origin.place}) sets {holds.state.text} for {holds.subject}"
        kept = f"it comes first and applies, not {ignored.state.text}"
        origin = ignored.origin
        return Message(
            problem, kept, "spec.state", "BackendState", ignored.name, origin.file, origin.line, warning=True
        )


def rank_overrides(overrides: Iterable[StateOverride], sources: Sequence[str]) -> tuple[Overrides, list[Contradiction]]:
    """Return the effective ones of all BackendStates, and those that one not from the operator overrides.

    `sources` are names of sources in their order of precedence. All other sources come last.
    """
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys((OPERATOR, *sources)))}

    def rank(override: StateOverride) -> int:
        return ranks.get(override.origin.source, len(ranks))

    ordered = sorted(overrides, key=lambda override: (rank(override), override.origin, override.name))
    first: dict[L3n4Addr | str, StateOverride] = {}
    contradictions = []
    for override in ordered:
        holds = first.setdefault(override.address or override.pod, override)
        if holds.state is not override.state and holds.origin.source != OPERATOR:
            contradictions.append(Contradiction(holds, override))
    by_address, by_pod = {}, {}
    for override in first.values():
        ranked = _Ranked(rank(override), override)
        if override.address is not None:
            by_address[override.address] = ranked
        else:
            by_pod[override.pod] = ranked
    return Overrides(by_address, by_pod), contradictions
