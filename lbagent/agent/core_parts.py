"""The parts of the agent with which every other part is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lbagent.agent.config_in_force import ConfigInForce
from lbagent.agent.frontend_owners import FrontendOwners
from lbagent.objects.object_event import EventSink
from lbagent.objects.source import Source
from lbagent.sources.backend_health import BackendHealthSource
from lbagent.sources.operator import OperatorSource
from lbagent.sync.generation_history import GenerationHistory
from lbagent.sync.loop import SyncLoop
from lbagent.targets.data_plane import DataPlane, ShownPlane
from lbagent.targets.renderers import translating


class CoreParts(NamedTuple):
    """What every other part is built with."""

    in_force: ConfigInForce
    operator: OperatorSource
    sources: Sequence[Source]  # the operator's, too
    events: Sequence[EventSink]  # where Events about objects go
    loop: SyncLoop
    planes: Sequence[DataPlane]  # the serving one first
    shown: ShownPlane  # all that translate packets, as requests and metrics read them
    owners: FrontendOwners
    history: GenerationHistory
    health: BackendHealthSource  # of backends: not among `sources`, which have what users write

    @property
    def plane(self) -> DataPlane:
        """The serving data plane."""
        return self.planes[0]

    @property
    def translating(self) -> Sequence[DataPlane]:
        """The serving data plane, and those that translate packets of another family."""
        return translating(self.planes)
