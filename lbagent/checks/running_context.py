"""The inputs of checks in a running agent."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lbagent.checks.node_context import MissingDevice, ShortBackend
from lbagent.checks.snat_ports import short_in_state
from lbagent.config.device_names import is_name
from lbagent.kernel.mounts import is_private
from lbagent.maps.pins import pin_dir

if TYPE_CHECKING:  # doctor imports this module, too, and needs no module of the agent
    from lbagent.announce.announcer import Announcer
    from lbagent.bpf.load.attach import Attachment
    from lbagent.bpf.load.datapath import Datapath
    from lbagent.bpf.run.sweep import Sweeper
    from lbagent.config import Config
    from lbagent.config.device_names import ChosenDevices
    from lbagent.healthz.node_servers import NodeServers
    from lbagent.maps.kernel_maps import KernelMaps
    from lbagent.maps.lbmaps import PathInfo
    from lbagent.model.backend import Backend
    from lbagent.model.family import Family
    from lbagent.model.further_sources import FurtherSources
    from lbagent.net.neighbours import NeighbourKeeper
    from lbagent.net.paths import PathFinder
    from lbagent.net.snapshot import Link, NodeNetwork
    from lbagent.objects.source import Source
    from lbagent.sync.loop import SyncLoop
    from lbagent.targets.bpf.bpf_plane import BpfDataPlane


class FollowedNetwork(Protocol):
    """The kernel's network, and the paths to backends (lbagent/targets/bpf/network_follower.py)."""

    finder: PathFinder
    keeper: NeighbourKeeper

    @property
    def network(self) -> NodeNetwork:
        """The latest snapshot."""

    def path(self, backend: Backend) -> PathInfo:
        """Return the path to a backend."""

    def frames_not_taken(self, now: float) -> dict[str, str]:
        """Return the recent losses of devices, one sentence each, by name."""


class KeptDevices(Protocol):
    """The devices and their programs (lbagent/targets/bpf/device_keeper.py)."""

    attached: tuple[Attachment, ...]
    problems: dict[str, str]
    lost: frozenset[Attachment]
    last_index: dict[str, int]
    chosen: ChosenDevices
    renamed: dict[str, Link]
    busy: asyncio.Lock

    async def attach_again(self) -> None:
        """Attach the missing programs."""


class FolderLock(Protocol):
    """The lock of the folder of the pins (lbagent/targets/bpf/lock.py)."""

    @property
    def opened(self) -> Path:
        """The locked folder by its descriptor."""

    def moving_to(self, directory: Path) -> AbstractContextManager[None]:
        """Lock another folder, too, and only that one once the block has succeeded."""


class OwnersFile(Protocol):
    """The file of frontend owners (lbagent/agent/frontend_owners.py)."""

    path: str
    failure: str


class RunningAgent(Protocol):
    """The parts of the agent that checks read (lbagent/agent/components.py). Later parts of the start are None until then."""

    mounted_bpffs: bool

    @property
    def config(self) -> Config: ...  # noqa: D102
    @property
    def maps(self) -> KernelMaps: ...  # noqa: D102
    @property
    def network(self) -> FollowedNetwork: ...  # noqa: D102
    @property
    def sources(self) -> Sequence[Source]: ...  # noqa: D102
    @property
    def loop(self) -> SyncLoop: ...  # noqa: D102
    @property
    def bpf(self) -> BpfDataPlane: ...  # noqa: D102
    @property
    def owners(self) -> OwnersFile | None: ...  # noqa: D102
    @property
    def datapath(self) -> Datapath | None: ...  # noqa: D102
    @property
    def devices(self) -> KeptDevices | None: ...  # noqa: D102
    @property
    def sweeper(self) -> Sweeper | None: ...  # noqa: D102
    @property
    def node_servers(self) -> NodeServers | None: ...  # noqa: D102
    @property
    def announcer(self) -> Announcer | None: ...  # noqa: D102
    @property
    def further(self) -> FurtherSources: ...  # noqa: D102
    @property
    def lock(self) -> FolderLock | None: ...  # noqa: D102
    @property
    def problems(self) -> Mapping[str, str]: ...  # noqa: D102
    def usage(self) -> Mapping[str, tuple[int, int]]: ...  # noqa: D102


class RunningContext:
    """A node with its agent: a NodeContext, and `agent` for the inputs of the agent alone."""

    def __init__(self, agent: RunningAgent) -> None:
        self.agent = agent

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.agent.config

    @property
    def network(self) -> NodeNetwork:
        """The latest snapshot."""
        return self.agent.network.network

    @property
    def pins(self) -> Path:
        """The folder of the pins."""
        return pin_dir(self.config.bpffs)

    @property
    def has_private_pins(self) -> bool:
        """Whether only the agent's mount namespace has the mount of the pins."""
        return is_private(self.pins, mounted_here=self.agent.mounted_bpffs)

    @property
    def has_socket_programs(self) -> bool:
        """Whether the agent attaches socket programs."""
        return self.config.has_socket_programs

    @property
    def forwarding_families(self) -> Collection[Family]:
        """The families with backends beyond this node's own sockets."""
        if self.config.serves_sockets_alone:
            return ()
        usage = self.agent.bpf.usage()
        return [family for family in self.agent.network.finder.forwards if usage[family.map("backend")][0]]

    @property
    def devices(self) -> Sequence[str]:
        """The devices that have programs."""
        keeper = self.agent.devices
        return sorted({item.target.name for item in keeper.attached}) if keeper else ()

    @property
    def snat_addresses(self) -> Iterable[bytes]:
        """The addresses of --snat-address, with those that live flows still use."""
        return self.agent.further.addresses()

    def missing_devices(self) -> Iterable[MissingDevice]:
        """Yield the devices of --device that are gone or renamed. A pattern may match no device beside another one."""
        keeper = self.agent.devices
        for name, problem in keeper.problems.items() if keeper else ():
            if keeper and name in keeper.chosen.missing and (is_name(name) or not keeper.chosen.names):
                now = self.network.links.get(keeper.last_index.get(name, 0))
                yield MissingDevice(name, problem, now.name if now else "")

    def short_backends(self) -> Iterable[ShortBackend]:
        """Return the backends that are short of SNAT ports, by the last sweep."""
        agent = self.agent
        if not agent.sweeper or not agent.sweeper.live:
            return ()
        (first, last), has = self.config.snat_port_range, self.network.has

        def sources(backend: Backend) -> tuple[bytes, ...]:
            return (agent.network.path(backend).snat, *filter(has, agent.bpf.further_addresses(backend)))

        return short_in_state(agent.bpf.state, agent.sweeper.live, last - first + 1, sources)
