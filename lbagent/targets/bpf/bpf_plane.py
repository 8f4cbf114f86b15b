"""BpfDataPlane: BPF maps and programs as the data plane of a node, with everything that the agent runs around them.

Order at start: lock, maps, ids from the maps (`open`); the network and the programs while the sources give their first lists
(`start`); the first pass (`reconcile`, in bpf_target.py); and only then the devices (`serve`): no packet meets a half-filled map.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.bpf.compiler import artifact, builder
from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.load import datapath, generation
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.loader import require_kernel
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.dead_peers import DeadPeers
from lbagent.bpf.run.resize import finish_resize, is_unfinished, resize, resize_at_start
from lbagent.bpf.run.size_change import ResizeOutcome, ResizeStopped
from lbagent.bpf.run.sweep import Sweeper, trust_ages
from lbagent.config import Config
from lbagent.errors import LbError
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.specs import Sizes
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.check import CheckGroup
from lbagent.model.extra_snat_sources import NO_EXTRA_SNAT_SOURCES
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.net.snapshot import NodeNetwork
from lbagent.render.renderer_types import Difference
from lbagent.sync.backoff import Failure
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import bpf_settings, bpf_view
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.device_keeper import DeviceKeeper, expected_hooks, require_devices
from lbagent.targets.bpf.lock import AgentLock
from lbagent.targets.bpf.network_follower import NetworkFollower
from lbagent.targets.bpf.pin_removal import remove_pins
from lbagent.targets.bpf.socket_frontends import socket_frontends
from lbagent.targets.bpf.vip_map import responder
from lbagent.targets.data_plane import (
    AddressResponder,
    Counters,
    Counts,
    EgressOf,
    Feature,
    Flow,
    FlowCounts,
    FrontendOf,
    OnNetwork,
    PlaneStatus,
    Usage,
)
from lbagent.task_failure import log_failure

if TYPE_CHECKING:
    from lbagent.targets.bpf.checks.running_context import RunningContext

log = logging.getLogger(__name__)
FRESH_S = 1.0  # flows counted so lately are not counted again
COUNT_S = 3.0  # an answer waits so long for a sweep; one takes some 0.2 s, 0.7 s with the largest table


class BpfDataPlane:
    """Owner of lock, maps, programs, devices, sweeper and what follows the network."""

    name = BpfTarget.name
    needs_facts = False
    # after `open`:
    lock: AgentLock
    maps: KernelMaps
    follower: NetworkFollower
    target: BpfTarget
    ready: asyncio.Event
    wake: asyncio.Event
    first_pass: asyncio.Event

    def __init__(self, config: Config, features: frozenset[Feature]) -> None:
        self.config, self.features = config, features
        self.extra_snat = NO_EXTRA_SNAT_SOURCES  # --snat-address, with the numbers that live flows have
        self.mounted_bpffs = False  # this agent mounted the bpf file system of its pins
        self.datapath: Datapath | None = None  # programs are in force
        self.devices: DeviceKeeper | None = None
        self.sweeper: Sweeper | None = None
        self.on_network: OnNetwork = lambda _network: None
        self._is_new = False  # nothing was pinned before
        self._closing = ExitStack()
        self._loading: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None

    # --- life ---

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Take the lock, open the maps, read what an earlier agent left; return the settings that are not in force, and why.

        `require` is called before anything is created or changed beside the folder of the pins. Blocks for some milliseconds.
        """
        config = self.config
        require_kernel()
        self.mounted_bpffs = pins.ensure_pin_dir(config.bpffs)
        root = pins.pin_dir(config.bpffs)
        self.lock = AgentLock(root)
        self.lock.take()
        self._closing.callback(self.lock.release)
        self._is_new = not any(root.iterdir())
        require()
        self.extra_snat = bpf_settings.extra_snat_sources(config, generation.pinned_extra_snat(root))
        sizes, settings = bpf_settings.sizes(config), bpf_settings.program_settings(config, self.extra_snat)
        resized = await asyncio.to_thread(resize_at_start, config.bpffs, sizes, self._artifact, settings)
        self.maps = KernelMaps.open(config.bpffs, resized.sizes)
        self._closing.callback(self.maps.close)
        prove_lost_ports(self.maps)
        paths = bpf_settings.path_settings(config, self.extra_snat)
        self.follower = NetworkFollower(self.maps, paths, bpf_settings.longest_timeout_s(config))
        self._closing.callback(self.follower.close)
        self.target = BpfTarget.open(self.maps, self.follower, config.name_of_node, are_new=self._is_new)
        self.ready, self.wake, self.first_pass = self.target.ready, self.target.wake, self.target.first_pass
        self._use_settings(config)
        return resized.problems

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Read and follow the network, and load the programs. Raises KernelError, NotFound without any device of --device."""
        follower, target = self.follower, self.target
        await follower.start()
        self.on_network(follower.network)
        require_devices(follower.network, self.config)
        self._loading = group.create_task(self._load())
        follower.on_paths = target.paths_changed
        # a frontend that could not be written still has backends of an earlier State
        follower.backends_in_use = lambda: None if target.failing else each_backend(target.state)
        group.create_task(follower.run())

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Attach to the devices, sweep the flow tables, end sockets whose backend is gone. Raises as `DeviceKeeper.start`."""
        assert self._loading is not None
        await self._loading
        assert self.datapath is not None
        follower, target, config = self.follower, self.target, self.config
        self.devices = DeviceKeeper(self.maps, self.datapath, config)
        self.devices.on_attached = follower.use_devices
        self.devices.refusing_of = follower.refusing_of
        await self.devices.start(follower.network)
        follower.on_network = self._network_changed
        group.create_task(self.devices.run())
        self.sweeper = Sweeper(
            self.maps,
            lambda: self.datapath.in_force if self.datapath else [],
            config.sweep_interval,
            target.flows_of_backends,
            target.former,
        )
        group.create_task(self.sweeper.run())
        if config.has_socket_programs:
            group.create_task(DeadPeers(self.maps, target.is_former_backend).run(target.changed_from))

    def check(self, config: Config) -> None:
        """Raise NotFound where none of the devices of --device is there."""
        require_devices(self.follower.network, config, self.config.device)

    async def reconfigure(self, config: Config) -> dict[str, str]:
        """Take over sizes, programs, devices and times. Raises LbError, then what was in force stays."""
        extra_snat = bpf_settings.extra_snat_sources(config, self.extra_snat)
        sizes, settings = bpf_settings.sizes(config), bpf_settings.program_settings(config, extra_snat)
        problems = await self._use_programs(sizes, settings)
        if self.devices is not None:
            await self.devices.reconfigure(config)
        self.extra_snat = extra_snat
        self._use_settings(config)
        self.follower.reconfigure(bpf_settings.path_settings(config, extra_snat))
        if self.sweeper is not None:
            self.sweeper.interval_s = config.sweep_interval
        self.config = config
        return problems

    @property
    def is_unfinished(self) -> bool:
        """Whether a change of map sizes is half done."""
        return is_unfinished(self.maps)

    def close(self) -> None:
        """Close every descriptor; the pins keep maps, programs and links."""
        self._closing.close()

    def take_back(self) -> None:
        """Remove the pins of a first start that failed: 100 MiB of maps without a use."""
        if self._is_new:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # pyroute2 leaves a task behind
            with suppress(LbError, OSError):
                remove_pins(pins.pin_dir(self.config.bpffs))

    def _artifact(self) -> Artifact:
        return artifact.load(Path(self.config.artifact)) if self.config.artifact else builder.ensure_artifact()

    async def _load(self) -> None:
        self.datapath = await asyncio.to_thread(self._load_programs)
        self._closing.callback(self.datapath.close)

    def _load_programs(self) -> Datapath:
        """Bring the programs in force (in a thread: the verifier takes its time)."""
        config, maps = self.config, self.maps
        found, root = self._artifact(), pins.pin_dir(config.bpffs)
        settings = bpf_settings.program_settings(config, self.extra_snat)
        hooks = expected_hooks(self.follower.network, config)
        return datapath.start(root, found, maps.fds, maps.sizes, settings, hooks=hooks)

    def _use_settings(self, config: Config) -> None:
        target = self.target
        target.use_extra_snat_sources(extra_snat=bool(config.snat_address))
        target.limit_endpoints(config.max_endpoints_per_namespace)
        target.resync_s = config.resync_interval
        target.linger_s = bpf_settings.linger_s(config)

    async def _use_programs(self, sizes: Sizes, settings: ProgramSettings) -> dict[str, str]:
        programs, maps, sweeper = self.datapath, self.maps, self.sweeper
        if programs is None:
            return {}
        devices, outcome = self.devices, ResizeOutcome(sizes, {})
        async with devices.busy if devices else nullcontext(), sweeper.busy if sweeper else nullcontext():
            try:
                if is_unfinished(maps):
                    outcome = await asyncio.to_thread(finish_resize, maps, lambda: programs.artifact, settings)
                    _take(outcome, maps, programs)
                if sizes != maps.sizes:
                    outcome = await asyncio.to_thread(resize, maps, sizes, lambda: programs.artifact, settings)
                    _take(outcome, maps, programs)
            except ResizeStopped as stopped:
                if stopped.programs is not None:
                    programs.leave_hooks_to(stopped.programs)
                raise
            await asyncio.to_thread(programs.reload, programs.artifact, maps.fds, maps.sizes, settings)
        return outcome.problems

    def _network_changed(self, network: NodeNetwork) -> None:
        if self.devices is not None:
            self.devices.follow(network)
        self.on_network(network)

    # --- the State, by the target ---

    @property
    def network(self) -> NodeNetwork:
        """The node's network as it is now."""
        return self.follower.network

    @property
    def generation(self) -> int:
        """Counter of the States in the maps."""
        return self.target.generation

    @property
    def state(self) -> State:
        """The State in the maps."""
        return self.target.state

    @property
    def current_state(self) -> State:
        """The State in the maps; before the first pass what an earlier agent left there."""
        return self.target.current_state

    @property
    def wanted(self) -> State:
        """The State that was requested last."""
        return self.target.wanted

    @property
    def waiting(self) -> str:
        """Why nothing is removed yet."""
        return self.target.waiting

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that could not be written."""
        return self.target.failing

    @property
    def error(self) -> str:
        """What failed beside single frontends."""
        return self.target.error

    @property
    def counts(self) -> Counts:
        """What the target did."""
        return self.target.counts

    @property
    def retains(self) -> bool:
        """Whether the maps may hold what no source has given to this agent."""
        return self.target.retains

    @property
    def sweeps(self) -> int:
        """Finished sweeps of the flow tables."""
        return self.sweeper.sweeps if self.sweeper else 0

    @property
    def restored(self) -> int:
        """Frontends in the maps before the first pass."""
        return self.target.restored

    @property
    def retained(self) -> int:
        """Frontends that stay as the maps had them."""
        return self.target.retained

    def retry_at(self) -> float | None:
        """Return when something that failed is due."""
        return self.target.retry_at()

    def restored_backends(self) -> Collection[L3n4Addr]:
        """Return the backends that were in the maps at the start."""
        return self.target.restored_backends()

    async def reconcile(self, desired: Desired) -> None:
        """Bring the maps to the State."""
        await self.target.reconcile(desired)

    async def watch(self) -> None:
        """Compare the maps periodically with what was written."""
        await self.target.watch()

    async def changed_from(self, generation: int) -> int:
        """Return the generation in the maps as soon as it differs."""
        return await self.target.changed_from(generation)

    # --- what it shows: bpf_view.py makes it ---

    def status(self) -> PlaneStatus:
        """Return what `lbagent status` shows."""
        return bpf_view.status(self)

    def problems(self) -> Sequence[str]:
        """Return what is wrong with devices as a whole."""
        from lbagent.targets.bpf.checks.device_checks import REVERSE_PATH_STRICT
        from lbagent.targets.bpf.checks.running_context import RunningContext

        if self.devices is None:
            return ()
        shown = {*self.devices.chosen.names, *self.devices.chosen.missing}  # among the devices
        texts = [text for name, text in self.devices.problems.items() if name not in shown]
        return texts + [each.text for each in REVERSE_PATH_STRICT.findings(RunningContext(self))]

    def checks(self) -> CheckGroup[RunningContext]:
        """Return the checks of maps, programs, pins, devices and paths."""
        from lbagent.targets.bpf.checks.bpf_checks import bpf_checks
        from lbagent.targets.bpf.checks.running_context import RunningContext

        return CheckGroup(bpf_checks(), RunningContext(self))

    def usage(self) -> dict[str, Usage]:
        """Return (entries in use, most entries) of each map that is counted."""
        usage = self.target.usage()
        usage["lb_nexthop"] = (self.follower.table.used, self.follower.table.capacity)
        return usage | (self.sweeper.usage() if self.sweeper else {})

    def id_usage(self) -> dict[str, Usage]:
        """Return (used, max) of the ids of backends and of frontends."""
        return self.target.id_usage()

    def largest_namespaces(self, table: str) -> dict[str, int]:
        """Return which namespaces use most of a map, or of the ids."""
        return self.target.largest_namespaces(table)

    def backend_states(self) -> Mapping[BackendState, int]:
        """Return how many backends are in which state."""
        return self.target.backend_states()

    def backend_count(self) -> int:
        """Return how many backends a frontend in the maps names."""
        return self.target.backends

    def devices_attached(self) -> dict[str, bool]:
        """Return whether each device takes traffic."""
        return bpf_view.devices_attached(self)

    def egress_paths(self) -> EgressOf:
        """Return a function that returns how packets get to a backend: one answer for each device."""
        return bpf_view.egress_paths(self)

    def counters(self, *, backends: bool = True) -> Counters:
        """Return what the programs counted."""
        return bpf_view.counters(self, backends=backends)

    def extra_snat_in_use(self) -> dict[Family, int]:
        """Return the addresses of --snat-address that the node has, by family."""
        has = self.follower.network.has
        return {
            family: sum(has(address) for _, address in self.extra_snat.of_width(family.address_bytes))
            for family in Family
        }

    def extra_snat_addresses(self, backend: Backend) -> list[bytes]:
        """Return the extra SNAT addresses of a backend, also those that no device has now."""
        return self.target.extra_snat_addresses(backend)

    async def count_flows(self) -> FlowCounts:
        """Count live flows by a sweep: one for all callers, which is never given up."""
        sweeper = self.sweeper
        if sweeper is None:
            return FlowCounts(None)
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(sweeper.count(FRESH_S), name="count flows")
            self._counting.add_done_callback(log_failure)
        await asyncio.wait({self._counting}, timeout=COUNT_S)
        age_s = time.monotonic() - sweeper.counted_at
        return FlowCounts(sweeper.live, age_s if age_s > FRESH_S + sweeper.last_duration_s else 0.0)

    def flows(self) -> Iterator[Sequence[Flow]]:
        """Yield the flows of the tables, those of a piece of a table at a time."""
        return bpf_view.flows(self.maps, self.target)

    def frontends_of_sockets(self, family: Family) -> FrontendOf:
        """Return what the socket programs noted."""
        return socket_frontends(self.maps, family)

    # --- announced addresses ---

    def responder(self, restart_grace_s: float) -> AddressResponder:
        """Return the entries of lb_vip and lb_former_leader."""
        return responder(self.maps, restart_grace_s)

    def announcing_devices(self) -> Collection[str]:
        """Return the devices with programs that answer."""
        return self.devices.announcing_devices() if self.devices else ()

    def carriers(self) -> Collection[int]:
        """Return the devices by which frames can leave."""
        return self.follower.watcher.neighbours().carriers

    async def verify(self) -> Sequence[Difference]:
        """Return in what the maps differ from what was written, and the paths from those of the State."""
        return await self.target.differences()

    async def repair(self) -> Sequence[Difference]:
        """Read the maps again where they differ, and have the State written."""
        return await self.target.resync()

    @property
    def difference_count(self) -> int:
        """How many differences the last comparison found."""
        return self.target.difference_count


def prove_lost_ports(maps: KernelMaps) -> None:
    """Let flows prove their SNAT ports where the slots are new: a flow of an earlier agent that has none then gets one again.

    Without it such a flow would send from a port that no reply is translated at, until it ends. Raises KernelError.
    """
    lost = sorted({"lb4_snat", "lb6_snat"} & maps.created)
    if lost:
        trust_ages(maps, 0)
        log.debug("flows prove their SNAT ports until the first sweep", extra={"new_maps": lost})


def _take(outcome: ResizeOutcome, maps: KernelMaps, programs: Datapath) -> None:
    """Go on with the maps and programs that are in force now."""
    maps.replace(outcome.fds, outcome.sizes)
    if outcome.programs is not None:
        programs.switch_to(outcome.programs)
