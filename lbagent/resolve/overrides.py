"""Which state BackendStates set for a backend, and which of them holds when several do.

The operator's BackendStates beat those of every other source; of these the source that is configured first wins, in it the
object that comes first. Of one source, a state of an address beats that of the Pod behind it.
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
    """The states that hold, by address and by the key of a Pod."""

    by_address: Mapping[L3n4Addr, _Ranked] = MappingProxyType({})
    by_pod: Mapping[str, _Ranked] = MappingProxyType({})

    def __bool__(self) -> bool:
        """Whether any backend has a state set."""
        return bool(self.by_address or self.by_pod)

    def state_of(self, address: L3n4Addr, pod: str) -> BackendState | None:
        """Return the state set for a backend whose endpoint names this Pod ('' = none); None when none is."""
        holds = self.that_holds(address, pod)
        return holds.state if holds is not None else None

    def that_holds(self, address: L3n4Addr, pod: str) -> StateOverride | None:
        """Return the BackendState that holds for a backend whose endpoint names this Pod ('' = none)."""
        of_address = self.by_address.get(address)
        of_pod = self.by_pod.get(pod)
        if of_pod is not None and (of_address is None or of_pod.rank < of_address.rank):
            return of_pod.override
        return of_address.override if of_address is not None else None

    def of_addresses(self) -> dict[L3n4Addr, BackendState]:
        """Return the states set for single addresses."""
        return {address: ranked.override.state for address, ranked in self.by_address.items()}


class Contradiction(NamedTuple):
    """Two BackendStates set different states for the same backends: the first holds, the other does not act."""

    holds: StateOverride
    ignored: StateOverride

    def message(self) -> Message:
        """Return the warning about the one that does not act."""
        holds, ignored = self
        problem = f"BackendState {holds.name} ({holds.origin.place}) says {holds.state.text} of {holds.subject}"
        kept = f"it comes first and holds, not {ignored.state.text}"
        origin = ignored.origin
        return Message(
            problem, kept, "spec.state", "BackendState", ignored.name, origin.file, origin.line, warning=True
        )


def rank_overrides(overrides: Iterable[StateOverride], sources: Sequence[str]) -> tuple[Overrides, list[Contradiction]]:
    """Return which of all BackendStates hold, and which are contradicted by one that is not the operator's.

    `sources` are names of sources in the order in which they win. One that is not named comes after them all.
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
