"""What checks read in a running agent: the parts of the data plane."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lbagent.config.device_names import is_name
from lbagent.kernel.mounts import is_private
from lbagent.maps.map_names import family_map
from lbagent.maps.pins import pin_dir
from lbagent.targets.bpf.checks.node_context import MissingDevice, ShortBackend
from lbagent.targets.bpf.checks.snat_ports import short_in_state

if TYPE_CHECKING:
    from lbagent.bpf.load.datapath import Datapath
    from lbagent.bpf.run.sweep import Sweeper
    from lbagent.config import Config
    from lbagent.maps.kernel_maps import KernelMaps
    from lbagent.model.backend import Backend
    from lbagent.model.extra_snat_sources import ExtraSnatSources
    from lbagent.model.family import Family
    from lbagent.model.state import State
    from lbagent.net.snapshot import NodeNetwork
    from lbagent.targets.bpf.device_keeper import DeviceKeeper
    from lbagent.targets.bpf.handshake_watch import HandshakeWatch
    from lbagent.targets.bpf.lock import AgentLock
    from lbagent.targets.bpf.network_follower import NetworkFollower
    from lbagent.targets.data_plane import SelfTestResult, Usage


class PinnedParts(Protocol):
    """What is pinned, and what holds the pins."""

    config: Config
    mounted_bpffs: bool
    lock: AgentLock
    maps: KernelMaps
    datapath: Datapath | None
    devices: DeviceKeeper | None


class CheckedPlane(PinnedParts, Protocol):
    """The parts of the data plane (bpf_plane.py) that checks read. Later parts of the start are None until then."""

    follower: NetworkFollower
    extra_snat: ExtraSnatSources
    sweeper: Sweeper | None
    handshake_watch: HandshakeWatch

    @property
    def state(self) -> State:
        """The State in the maps."""

    @property
    def self_test(self) -> SelfTestResult:
        """What the last self-test found."""

    def usage(self) -> dict[str, Usage]:
        """Return (entries in use, most entries) of each map that is counted."""

    def id_usage(self) -> dict[str, Usage]:
        """Return (used, max) of the ids of backends and of frontends."""

    def largest_namespaces(self, table: str) -> dict[str, int]:
        """Return which namespaces use most of a map, or of the ids."""

    def extra_snat_addresses(self, backend: Backend) -> list[bytes]:
        """Return the extra SNAT addresses of a backend, also those that no device has now."""


class RunningContext:
    """A node with its agent: a NodeContext, and `plane` for the inputs of the agent alone."""

    def __init__(self, plane: CheckedPlane) -> None:
        self.plane = plane

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.plane.config

    @property
    def network(self) -> NodeNetwork:
        """The latest snapshot."""
        return self.plane.follower.network

    @property
    def pins(self) -> Path:
        """The folder of the pins."""
        return pin_dir(self.config.bpffs)

    @property
    def has_private_pins(self) -> bool:
        """Whether only the agent's mount namespace has the mount of the pins."""
        return is_private(self.pins, mounted_here=self.plane.mounted_bpffs)

    @property
    def has_socket_programs(self) -> bool:
        """Whether the agent attaches socket programs."""
        return self.config.has_socket_programs

    @property
    def forwarding_families(self) -> Collection[Family]:
        """The families with backends beyond this node's own sockets."""
        if self.config.serves_sockets_alone:
            return ()
        usage = self.plane.usage()
        return [family for family in self.plane.follower.finder.forwards if usage[family_map(family, "backend")][0]]

    @property
    def devices(self) -> Sequence[str]:
        """The devices that have programs."""
        keeper = self.plane.devices
        return sorted({item.target.name for item in keeper.attached}) if keeper else ()

    @property
    def snat_addresses(self) -> Iterable[bytes]:
        """The addresses of --snat-address, with those that live flows still use."""
        return self.plane.extra_snat.addresses()

    def missing_devices(self) -> Iterable[MissingDevice]:
        """Yield the devices of --device that are gone or renamed. A pattern may match no device beside another one."""
        keeper = self.plane.devices
        for name, problem in keeper.problems.items() if keeper else ():
            if keeper and name in keeper.chosen.missing and (is_name(name) or not keeper.chosen.names):
                now = self.network.links.get(keeper.last_index.get(name, 0))
                yield MissingDevice(name, problem, now.name if now else "")

    def short_backends(self) -> Iterable[ShortBackend]:
        """Return the backends that are short of SNAT ports, by the last sweep."""
        plane = self.plane
        if not plane.sweeper or not plane.sweeper.held:
            return ()
        (first, last), has = self.config.snat_port_range, self.network.has

        def sources(backend: Backend) -> tuple[bytes, ...]:
            return (plane.follower.path(backend).snat, *filter(has, plane.extra_snat_addresses(backend)))

        return short_in_state(plane.state, plane.sweeper.held, last - first + 1, sources)
