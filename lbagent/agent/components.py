"""The parts of the running agent: facade.py shows them, reload.py changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from lbagent.agent.condition_monitor import ConditionMonitor
    from lbagent.agent.frontend_owners import FrontendOwners
    from lbagent.announce.announcer import Announcer
    from lbagent.announce.bgp.speaker import BgpSpeaker
    from lbagent.apilb.native.pool_rows import NativePools
    from lbagent.bpf.load.datapath import Datapath
    from lbagent.bpf.run.sweep import Sweeper
    from lbagent.config import Config
    from lbagent.healthz.node_servers import NodeServers
    from lbagent.maps.kernel_maps import KernelMaps
    from lbagent.model.further_sources import FurtherSources
    from lbagent.objects.object_event import EventSink
    from lbagent.objects.source import Source
    from lbagent.sources.operator import OperatorSource
    from lbagent.sync.loop import SyncLoop
    from lbagent.targets.bpf.bpf_plane import BpfDataPlane
    from lbagent.targets.bpf.device_keeper import DeviceKeeper
    from lbagent.targets.bpf.lock import AgentLock
    from lbagent.targets.bpf.network_follower import NetworkFollower
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

    # --- parts of the BPF data plane, for the checks of conditions that are made with it alone ---

    @property
    def has_bpf(self) -> bool:
        """Whether BPF is the serving data plane: without it there are no parts of it."""
        return self.plane.name == "bpf"

    @property
    def bpf(self) -> BpfDataPlane:
        """The data plane, where it is BPF's."""
        return cast("BpfDataPlane", self.plane)

    @property
    def maps(self) -> KernelMaps:
        """Its maps."""
        return self.bpf.maps

    @property
    def network(self) -> NetworkFollower:
        """What follows the network, and keeps next hops and paths."""
        return self.bpf.follower

    @property
    def datapath(self) -> Datapath | None:
        """Its programs."""
        return self.bpf.datapath

    @property
    def devices(self) -> DeviceKeeper | None:
        """What keeps programs on devices."""
        return self.bpf.devices

    @property
    def sweeper(self) -> Sweeper | None:
        """What ages its flow tables."""
        return self.bpf.sweeper

    @property
    def further(self) -> FurtherSources:
        """--snat-address."""
        return self.bpf.further

    @property
    def lock(self) -> AgentLock | None:
        """The lock of its pins."""
        return self.bpf.lock

    @property
    def mounted_bpffs(self) -> bool:
        """Whether this agent mounted the bpf file system of the pins."""
        return self.bpf.mounted_bpffs

    @mounted_bpffs.setter
    def mounted_bpffs(self, value: bool) -> None:
        self.bpf.mounted_bpffs = value
