"""The data plane `bpf` for one family: `--renderer bpf=family=ipv4`. It has no frontend of the other one, whose packets pass."""

from __future__ import annotations

from lbagent.config import Config
from lbagent.model.family import Family
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf.bpf_plane import BpfDataPlane
from lbagent.targets.data_plane import Feature
from lbagent.targets.one_family import OneFamily


class BpfOneFamily(BpfDataPlane):
    """Makes the rows of one family true."""

    def __init__(self, config: Config, features: frozenset[Feature], family: Family) -> None:
        super().__init__(config, features)
        self._part = OneFamily(frozenset((family,)))

    async def reconcile(self, desired: Desired) -> None:
        """Make the State true as far as it is of the family."""
        await super().reconcile(self._part.of(desired))
