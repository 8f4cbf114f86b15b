"""The parts of the running agent: facade.py shows them, reload.py changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lbagent.agent.condition_monitor import ConditionMonitor
from lbagent.agent.device_keeper import DeviceKeeper
from lbagent.agent.frontend_owners import FrontendOwners
from lbagent.agent.lock import AgentLock
from lbagent.agent.network import NetworkFollower
from lbagent.announce.announcer import Announcer
from lbagent.announce.bgp.speaker import BgpSpeaker
from lbagent.apilb.native.pool_rows import NativePools
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.run.sweep import Sweeper
from lbagent.config import Config
from lbagent.healthz.node_servers import NodeServers
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.model.family import Family
from lbagent.model.further_sources import NO_FURTHER_SOURCES, FurtherSources
from lbagent.objects.object_event import EventSink
from lbagent.objects.source import Source
from lbagent.sources.operator import OperatorSource
from lbagent.sync.loop import SyncLoop
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.textfile.followed_file import FollowedFile


@dataclass
class AgentComponents:
    """Everything that was built. What comes later in the start is None until then."""

    config: Config
    maps: KernelMaps
    network: NetworkFollower
    sources: Sequence[Source]
    operator: OperatorSource
    loop: SyncLoop
    bpf: BpfTarget  # one of the targets of the loop: the maps that packets meet
    owners: FrontendOwners | None = None  # the file that says who had a frontend
    datapath: Datapath | None = None
    devices: DeviceKeeper | None = None
    sweeper: Sweeper | None = None
    conditions: ConditionMonitor | None = None
    node_servers: NodeServers | None = None
    announcer: Announcer | None = None  # with --announce
    pools: FollowedFile | None = None  # --announce
    native: NativePools | None = None  # with --apilb
    speaker: BgpSpeaker | None = None  # with --announce
    started: bool = False  # programs are loaded and attached
    events: Sequence[EventSink] = ()  # where Events about objects go
    further: FurtherSources = NO_FURTHER_SOURCES  # --snat-address, with the numbers that live flows know
    lock: AgentLock | None = None  # of the folder of the pins
    mounted_bpffs: bool = False  # this agent mounted the bpf file system of its pins
    problems: dict[str, str] = field(default_factory=dict)  # settings that are not in force -> why

    @property
    def ready(self) -> bool:
        """Whether the first full State is in the kernel and packets meet it."""
        return self.started and self.bpf.ready.is_set()

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return (entries in use, most entries) of each map that is counted."""
        usage = self.bpf.usage()
        usage["lb_nexthop"] = (self.network.table.used, self.network.table.capacity)
        return usage | (self.sweeper.usage() if self.sweeper else {})

    def further_in_use(self) -> dict[Family, int]:
        """Return the addresses of --snat-address that the node has, by family."""
        has = self.network.network.has
        return {
            family: sum(has(address) for _, address in self.further.of_width(family.address_bytes)) for family in Family
        }
