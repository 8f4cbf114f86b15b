"""The part of each State that a data plane of some families serves. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.sync.target_protocol import Desired


class OneFamily:
    """Leaves out the frontends of other families; the same State gives the same object."""

    def __init__(self, families: frozenset[Family]) -> None:
        self._families = families
        self._whole, self._part = State(), State()  # of the last call

    def of(self, desired: Desired) -> Desired:
        """Return the input of a target with the part of its State."""
        if self._families == frozenset(Family):
            return desired
        if desired.state is not self._whole:
            rows = tuple(svc for svc in desired.state.services if svc.frontend.family in self._families)
            self._whole, self._part = desired.state, State(desired.state.generation, rows)
        return replace(desired, state=self._part)
