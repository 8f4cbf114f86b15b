"""BpfDataPlane: BPF maps and programs as the data plane of a node, with everything that the agent runs around them.

Order at start: lock, maps, ids from the maps (`open`); the network and the programs while the sources give their first lists
(`start`); the first pass (`reconcile`, in bpf_target.py); and only then the devices (`serve`): no packet meets a half-filled map.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lbagent.bpf.compiler import artifact, builder
from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.load import datapath, generation
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.loader import require_kernel
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.resize import finish_resize, is_unfinished, resize, resize_at_start
from lbagent.bpf.run.size_change import ResizeOutcome, ResizeStopped
from lbagent.bpf.run.sweep import Sweeper, trust_ages
from lbagent.config import Config
from lbagent.errors import LbError, Refused
from lbagent.maps import pins
from lbagent.maps.backend_codec import check_mark
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.event_map import pin_event_map, store_generation
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.specs import Sizes
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import Backend, BackendState
from lbagent.model.check import CheckGroup
from lbagent.model.extra_snat_sources import NO_EXTRA_SNAT_SOURCES
from lbagent.model.family import Family
from lbagent.model.handshakes import Handshakes
from lbagent.model.state import State
from lbagent.net.snapshot import NodeNetwork
from lbagent.probes.backend_check import CheckedService
from lbagent.probes.passive_checks import WaitingHandshake
from lbagent.render.renderer_types import Difference
from lbagent.sync.backoff import Failure
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import bpf_settings, bpf_view
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.beside_nftables import BesideNftables
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.targets.bpf.device_keeper import DeviceKeeper, expected_hooks, require_devices
from lbagent.targets.bpf.explained_plane import ExplainedPlane
from lbagent.targets.bpf.handshake_watch import HandshakeWatch
from lbagent.targets.bpf.left_datagrams import LeftDatagrams
from lbagent.targets.bpf.lock import AgentLock
from lbagent.targets.bpf.network_follower import NetworkFollower
from lbagent.targets.bpf.packet_sampling import PacketSampling
from lbagent.targets.bpf.passing_rows import PassingRows
from lbagent.targets.bpf.pin_removal import remove_pins
from lbagent.targets.bpf.proxy_connections import ProxyConnections
from lbagent.targets.bpf.proxy_route_keeper import ProxyRoute
from lbagent.targets.bpf.self_test import SelfTest
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
    SelfTestResult,
    Usage,
)
from lbagent.task_failure import log_failure

if TYPE_CHECKING:
    from lbagent.targets.bpf.checks.running_context import RunningContext
    from lbagent.targets.explanation import ExplainRequest, Explanation

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
    handshake_watch: HandshakeWatch
    left_datagrams: LeftDatagrams
    _plain: Artifact  # the programs without those for readers of packets; after `_load`

    def __init__(self, config: Config, features: frozenset[Feature]) -> None:
        self.config, self.features = config, features
        self._beside = BesideNftables()
        self.taking_over: Callable[[], str] = lambda: ""  # from which data plane, for the status
        self._sockets: Mapping[L3n4Addr, int] = {}  # of the node that use a backend, as counted last
        self._sockets_at = 0.0
        self.extra_snat = NO_EXTRA_SNAT_SOURCES  # --snat-address, with the numbers that live flows have
        self.reply_ports = config.snat_port_range  # those at which replies are recognised: live flows have some of them
        self.mounted_bpffs = False  # this agent mounted the bpf file system of its pins
        self.datapath: Datapath | None = None  # programs are in force
        self.devices: DeviceKeeper | None = None
        self.sweeper: Sweeper | None = None
        self.on_network: OnNetwork = lambda _network: None
        self._is_new = False  # nothing was pinned before
        self._replaces_proxy = False
        self._closing = ExitStack()
        self._loading: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._explained = ExplainedPlane(self)
        self._closing.callback(self._explained.close)
        self._self_test = SelfTest(self, self._explained)
        self.sampling = PacketSampling(self._sample)

    # --- life ---

    def replace_proxy(self) -> None:
        """Begin no flow until every device is attached, where nothing is pinned yet: no device has half of a connection."""
        self._replaces_proxy = True

    async def open(self, require: Callable[[], None]) -> Mapping[str, str]:
        """Take the lock, open the maps, read what an earlier agent left; return the settings that are not in force, and why.

        `require` is called before anything is created or changed beside the folder of the pins. Blocks for some milliseconds.
        """
        require_kernel()
        self.mounted_bpffs = pins.ensure_pin_dir(self.config.bpffs)
        root = pins.pin_dir(self.config.bpffs)
        self.lock = AgentLock(root)
        self.lock.take()
        self._closing.callback(self.lock.release)
        self._beside.snat_ports = generation.pinned_snat_ports(root)
        config = self.config = self._beside.in_force(self.config)
        self._is_new = not any(root.iterdir())
        if self._replaces_proxy and self._is_new:
            self._beside.passing = PassingRows()
        require()
        self.extra_snat = bpf_settings.extra_snat_sources(config, generation.pinned_extra_snat(root))
        self.reply_ports = bpf_settings.reply_ports(config, generation.pinned_reply_ports(root))
        sizes = bpf_settings.sizes(config, self.reply_ports)
        settings = bpf_settings.program_settings(config, self.extra_snat, self.reply_ports)
        resized = await asyncio.to_thread(resize_at_start, config.bpffs, sizes, self._artifact, settings)
        self.maps = KernelMaps.open(config.bpffs, resized.sizes, events=config.events)
        self._closing.callback(self.maps.close)
        prove_lost_ports(self.maps)
        paths = bpf_settings.path_settings(config, self.extra_snat)
        self.follower = NetworkFollower(self.maps, paths, bpf_settings.longest_timeout_s(config))
        self._closing.callback(self.follower.close)
        self.target = BpfTarget.open(self.maps, self.follower, config.name_of_node, are_new=self._is_new)
        self.ready, self.wake, self.first_pass = self.target.ready, self.target.wake, self.target.first_pass
        self.handshake_watch = HandshakeWatch(self.maps, self.target)
        self.sampling.is_possible = EVENT_MAP in self.maps.fds
        self.left_datagrams = LeftDatagrams(self.maps)
        await self._leave_datagrams()
        self.target.proxies.route = ProxyRoute()
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
            target.flow_rules,
        )
        self.sweeper.on_swept = self._swept
        group.create_task(self.sweeper.run())
        if config.has_socket_programs:
            from lbagent.bpf.run.dead_peers import DeadPeers

            group.create_task(DeadPeers(self.maps, target.is_former_backend).run(target.changed_from))
        group.create_task(target.proxies.run(target.ready))
        group.create_task(ProxyConnections(self.maps, target.flow_rules.proxied).run())
        group.create_task(self._self_test.run())
        group.create_task(self.handshake_watch.run())
        if EVENT_MAP in self.maps.fds:
            group.create_task(self._mark_events(self.maps.fds[EVENT_MAP]))
        group.create_task(self.left_datagrams.run(lambda: self.config.leaves_older_flows))
        if self._replaces_proxy:
            await self.begin_flows()

    async def _mark_events(self, rings: int) -> None:
        """Keep the generation in the event rings that of the State in force."""
        generation = self.target.generation
        while True:
            store_generation(rings, generation)
            generation = await self.target.changed_from(generation)

    def check(self, config: Config) -> None:
        """Raise NotFound where none of the devices of --device is there."""
        require_devices(self.follower.network, config, self.config.device)

    async def reconfigure(self, config: Config) -> dict[str, str]:
        """Take over sizes, programs, devices and times. Raises LbError, then what was in force stays."""
        config = self._beside.in_force(config)
        extra_snat = bpf_settings.extra_snat_sources(config, self.extra_snat)
        reply_ports = bpf_settings.reply_ports(config, self.reply_ports)
        sizes = bpf_settings.sizes(config, reply_ports)
        settings = bpf_settings.program_settings(config, extra_snat, reply_ports)
        problems = await self._use_programs(sizes, settings)
        if self.devices is not None:
            await self.devices.reconfigure(config)
        self.extra_snat, self.reply_ports = extra_snat, reply_ports
        self._use_settings(config)
        self.follower.reconfigure(bpf_settings.path_settings(config, extra_snat))
        if self.sweeper is not None:
            self.sweeper.interval_s = config.sweep_interval
        self.config = config
        return problems

    async def _sample(self) -> None:
        """Put the programs in force that record what readers need. Raises LbError."""
        if self.datapath is None:
            raise Refused("the programs are being loaded: try again in some seconds")
        await self._use_programs(self.maps.sizes, self._settings(self.config))

    def _settings(self, config: Config) -> ProgramSettings:
        return bpf_settings.program_settings(config, self.extra_snat, self.reply_ports)

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
        self.remove_new_pins()

    def remove_new_pins(self) -> None:
        """Do the same in a process that continues. The lock is still held. Blocks."""
        if self._is_new:
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
        self._plain = found
        settings = self._settings(config)
        hooks = expected_hooks(self.follower.network, config)
        made = datapath.start(root, found, maps.fds, maps.sizes, settings, hooks=hooks)
        pin_event_map(config.bpffs, maps.fds.get(EVENT_MAP))  # readers follow the rings that are written
        return made

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
        busy = devices.busy if devices else nullcontext(), sweeper.busy if sweeper else nullcontext()
        async with busy[0], busy[1], self._explained.busy:
            try:
                if is_unfinished(maps):
                    outcome = await asyncio.to_thread(finish_resize, maps, lambda: self._plain, settings)
                    _take(outcome, maps, programs)
                if sizes != maps.sizes:
                    outcome = await asyncio.to_thread(resize, maps, sizes, lambda: self._plain, settings)
                    _take(outcome, maps, programs)
            except ResizeStopped as stopped:
                if stopped.programs is not None:
                    programs.leave_hooks_to(stopped.programs)
                raise
            sampled = self.sampling.wanted  # as it is now that no other change is under way
            settings = replace(settings, sample=sampled.every, frames_after=sampled.frames_after)
            await asyncio.to_thread(self._reload, programs, settings)
        return outcome.problems

    def _reload(self, programs: Datapath, settings: ProgramSettings) -> None:
        wanted = builder.sampling_artifact(self._plain) if settings.sample else self._plain
        programs.reload(wanted, self.maps.fds, self.maps.sizes, settings)

    def _network_changed(self, network: NodeNetwork) -> None:
        if self.devices is not None:
            self.devices.follow(network)
        self.target.proxies.network_changed()
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

    def restored_inside_rows(self) -> Collection[L3n4Addr]:
        """Return the frontends of scope INTERNAL that were in the maps at the start."""
        return self.target.restored_inside_rows()

    async def reconcile(self, desired: Desired) -> None:
        """Bring the maps to the State."""
        passing = self._beside.passing
        if passing is not None:
            desired = replace(desired, state=passing.state(desired.state))
        await self.target.reconcile(desired)
        if passing is self._beside.passing:
            self._beside.changed.set()

    def share_with_nftables(self, *, passing: bool) -> None:
        """Leave open connections, and source ports, to nftables; `passing`: what is new, too. Call it before `open`."""
        self._beside.begin(self.config, passing=passing)

    async def begin_flows(self) -> None:
        """Take what is new; return when all frontends do."""
        await self._pass(None)
        await self._leave_datagrams()  # those that began meanwhile, by rows of before

    async def take_all_ports(self, before: Callable[[tuple[int, int]], Awaitable[None]]) -> bool:
        """Take the operator's SNAT ports, if bpf has fewer; return whether it had. No flow begins meanwhile.

        The programs of one device after the other get the range: the answer to a new port could meet one that has it not. `before`
        is called with the range, and lets nftables have what is new. Raises LbError.
        """
        ports = self._beside.all_ports(self.config)
        if ports == self.config.snat_port_range:
            return False
        await before(ports)
        await self._pass(PassingRows())
        await self.reconfigure(self._beside.widen(self.config))
        await self._pass(None)
        return True

    async def _pass(self, rows: PassingRows | None) -> None:
        await self._leave_datagrams()
        if self._beside.passing is not rows:
            self._beside.passing = rows
            self._beside.changed.clear()
            self.target.wake.set()
        await self._beside.changed.wait()

    async def _leave_datagrams(self) -> None:
        """Note which conversations over UDP belong to another proxy."""
        if self.config.leaves_older_flows:
            await asyncio.to_thread(self.left_datagrams.refresh)

    async def share_nothing(self) -> None:
        """Take all: nftables is gone. Raises LbError."""
        await self.reconfigure(self._beside.end(self.config))

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
        """Return what is wrong with devices as a whole, and from which data plane this one takes over."""
        if text := self.taking_over():
            return [text, *self._problems()]
        return self._problems()

    def _problems(self) -> list[str]:
        from lbagent.targets.bpf.checks.device_checks import REVERSE_PATH_STRICT
        from lbagent.targets.bpf.checks.running_context import RunningContext

        if self.devices is None:
            return []
        shown = {*self.devices.chosen.names, *self.devices.chosen.missing}  # among the devices
        texts = [text for name, text in self.devices.problems.items() if name not in shown]
        if self.target.stale.problem:
            texts.append(self.target.stale.problem)
        if self.target.proxies.problem:
            texts.append(self.target.proxies.problem)
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

    def check_mark(self, backend: L3n4Addr) -> int:
        """See MarkingPlane. With socket programs the agent's own sockets are connected to a backend before they send anything."""
        known = self.target.current_state.backends.get(backend)
        return 0 if known is None or self.config.has_socket_programs else check_mark(known.id)

    def waiting_handshakes(self, services: Mapping[str, CheckedService]) -> Sequence[WaitingHandshake]:
        """See ObservingPlane."""
        return self.handshake_watch.waiting(services)

    def answered_handshakes(self, services: Mapping[str, CheckedService]) -> Mapping[L3n4Addr, int]:
        """See ObservingPlane."""
        return self.handshake_watch.answered(services)

    def egress_paths(self) -> EgressOf:
        """Return a function that returns how packets get to a backend: one answer for each device."""
        return bpf_view.egress_paths(self)

    def handshakes(self, backends: Sequence[int]) -> Mapping[int, Handshakes]:
        """Return what lb_tcp has."""
        return bpf_view.handshakes(self, backends)

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
            self._counting = asyncio.create_task(self._count(sweeper), name="count flows")
            self._counting.add_done_callback(log_failure)
        await asyncio.wait({self._counting}, timeout=COUNT_S)
        age_s = time.monotonic() - sweeper.counted_at
        return FlowCounts(self._live(sweeper.live), age_s if age_s > FRESH_S + sweeper.last_duration_s else 0.0)

    async def _swept(self, held: Mapping[int, int], began_s: float) -> None:
        """Let go of backends that are gone and have no flow. Raises KernelError."""
        in_use: Collection[L3n4Addr] = ()
        if self.config.has_socket_programs and len(self.target.stale):
            found = await asyncio.to_thread(_live_sockets, self.config.bpffs)
            in_use = {each for _, backend in found or () for each in (backend, replace(backend, port=0))}
        await self.target.flows_were_counted(held, began_s, in_use)

    async def _count(self, sweeper: Sweeper) -> None:
        """Count the flows of packets by a sweep, and those of the node's sockets."""
        await sweeper.count(FRESH_S)
        if not self.config.has_socket_programs:
            self._sockets = {}
        elif time.monotonic() - self._sockets_at > FRESH_S:
            found = await asyncio.to_thread(_live_sockets, self.config.bpffs)
            by_backend: Counter[L3n4Addr] = Counter()
            for (_, backend), count in (found or Counter()).items():
                by_backend[backend] += count
            self._sockets, self._sockets_at = by_backend, time.monotonic()

    def _live(self, live: Mapping[int, int] | None) -> Mapping[int, int] | None:
        """Return the live flows by backend id, with those of sockets."""
        if live is None or not self._sockets:
            return live
        backends = self.state.backends
        out = Counter(live)
        for address, count in self._sockets.items():
            if backend := backends.get(address) or backends.get(replace(address, port=0)):  # of a range of ports
                out[backend.id] += count
        return out

    def flows(self) -> Iterator[Sequence[Flow]]:
        """Yield the flows of the tables, those of a piece of a table at a time."""
        return bpf_view.flows(self.maps, self.target)

    def frontends_of_sockets(self, family: Family) -> FrontendOf:
        """Return what the socket programs noted."""
        return socket_frontends(self.maps, family)

    async def explain(self, request: ExplainRequest, state: State | None) -> Sequence[Explanation]:
        """Return what would happen to packets: the dry programs over the maps in force, or over private ones of a State."""
        return await self._explained.explain(request, state)

    @property
    def self_test(self) -> SelfTestResult:
        """What the last self-test found."""
        return self._self_test.result

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


def _live_sockets(bpffs: str) -> Counter[tuple[L3n4Addr, L3n4Addr]] | None:
    from lbagent.targets.bpf.live_sockets import live_sockets

    return live_sockets(bpffs)


def _take(outcome: ResizeOutcome, maps: KernelMaps, programs: Datapath) -> None:
    """Go on with the maps and programs that are in force now."""
    maps.replace(outcome.fds, outcome.sizes)
    if outcome.programs is not None:
        programs.switch_to(outcome.programs)
