"""The parts of the running agent: facade.py shows them, reload.py changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbagent.agent.condition_monitor import ConditionMonitor
    from lbagent.agent.frontend_owners import FrontendOwners
    from lbagent.announce.announcer import Announcer
    from lbagent.announce.bgp.speaker import BgpSpeaker
    from lbagent.apilb.native.pool_rows import NativePools
    from lbagent.config import Config
    from lbagent.healthz.node_servers import NodeServers
    from lbagent.objects.object_event import EventSink
    from lbagent.objects.source import Source
    from lbagent.sources.operator import OperatorSource
    from lbagent.sync.loop import SyncLoop
    from lbagent.targets.data_plane import DataPlane, Usage


@dataclass
class AgentComponents:
    """Everything that was built. What comes later in the start is None until then."""

    config: Config
    sources: Sequence[Source]
    operator: OperatorSource
    loop: SyncLoop
    plane: DataPlane  # the serving one of the targets of the loop
    owners: FrontendOwners | None = None  # the file that says who had a frontend
    conditions: ConditionMonitor | None = None
    node_servers: NodeServers | None = None
    announcer: Announcer | None = None  # with --announce
    native: NativePools | None = None  # with --apilb
    speaker: BgpSpeaker | None = None  # with --announce
    started: bool = False  # packets meet what is in force
    events: Sequence[EventSink] = ()  # where Events about objects go
    problems: dict[str, str] = field(default_factory=dict)  # settings that are not in force -> why

    @property
    def ready(self) -> bool:
        """Whether the first full State is in force and packets meet it."""
        return self.started and self.plane.ready.is_set()

    def usage(self) -> Mapping[str, Usage]:
        """Return (entries in use, most entries) of each table that is counted."""
        return self.plane.usage()
