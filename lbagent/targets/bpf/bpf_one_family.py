"""The data plane `bpf` for one family: `--renderer bpf=family=ipv4`. It has no frontend of the other one, whose packets pass."""

from __future__ import annotations

from msgspec.structs import replace

from lbagent.config import Config
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf.bpf_plane import BpfDataPlane
from lbagent.targets.data_plane import Feature


class BpfOneFamily(BpfDataPlane):
    """Makes the rows of one family true."""

    def __init__(self, config: Config, features: frozenset[Feature], family: Family) -> None:
        super().__init__(config, features)
        self._family = family
        self._whole, self._part = State(), State()  # of the last pass

    async def reconcile(self, desired: Desired) -> None:
        """Make the State true as far as it is of the family."""
        if desired.state is not self._whole:
            family = self._family
            rows = tuple(svc for svc in desired.state.services if Family.of(svc.frontend.address) is family)
            self._whole, self._part = desired.state, State(desired.state.generation, rows)
        await super().reconcile(replace(desired, state=self._part))
