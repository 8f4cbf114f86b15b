"""The composition root: builds every part, starts them in order, stops them and leaves the datapath serving.

Order at start: lock, maps, ids from the maps; then side by side the network, the programs and the sources' first lists; then
the first reconciliation, and only then the devices: no packet meets a half-filled map. Until then whatever an earlier
agent left goes on serving untouched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import lbagent
from lbagent.agent import layer_settings
from lbagent.agent.components import AgentComponents
from lbagent.agent.conditions.every_check import every_check
from lbagent.agent.conditions.monitor import ConditionMonitor
from lbagent.agent.device_keeper import DeviceKeeper, expected_hooks, require_devices
from lbagent.agent.facade import AgentFacade
from lbagent.agent.frontend_owners import FrontendOwners
from lbagent.agent.lock import AgentLock
from lbagent.agent.network import NetworkFollower
from lbagent.agent.notify import keep_watchdog, notify, wait_at_start
from lbagent.agent.reload import Reloader
from lbagent.agent.removal import remove_pins
from lbagent.agent.sources import build_sources, event_sinks, native_pools
from lbagent.announce.announcer import Announcer, AnnouncerInputs
from lbagent.announce.bgp.bgp_routes import BgpRoutes, BgpSection
from lbagent.announce.bgp.speaker import BgpSpeaker, end_left_bird
from lbagent.announce.leader.lease_election import LeaseElection
from lbagent.api.server import ApiServer, require_socket, socket_file
from lbagent.apilb.native.connection_reset import ConnectionReset
from lbagent.apilb.native.pool_rows import NativePools
from lbagent.bpf.compiler import artifact, builder
from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.load import datapath, generation
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.loader import require_kernel
from lbagent.bpf.run.dead_peers import DeadPeers
from lbagent.bpf.run.resize import resize_at_start
from lbagent.bpf.run.sweep import Sweeper, trust_ages
from lbagent.config import Config
from lbagent.errors import ConfigError, LbError
from lbagent.healthz.node_servers import NodeServers
from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeSettings
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.net.snapshot import NodeNetwork
from lbagent.objects.object_event import MessageEvents
from lbagent.objects.records import ObjectSnapshot
from lbagent.observe import log as logs
from lbagent.pools.read_pools import PoolsFile, parse_pools
from lbagent.process_memory import keep_memory_small, tune_allocator
from lbagent.resolve import Resolver
from lbagent.sources.kube.source import KubeSource
from lbagent.sync.loop import SyncLoop
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.bpf_target import BpfTarget
from lbagent.textfile.followed_file import FollowedFile

log = logging.getLogger(__name__)
SWITCH_S = 0.0005  # a thread that reads a large file, or copies one, holds up a change for so long at most


def run_agent(load: Callable[[], Config]) -> None:
    """Run the agent until SIGTERM or SIGINT; `load` reads the configuration, again at each SIGHUP.

    Raises LbError with the exit code of what could not be done.
    """
    config = load()
    logs.setup(config.log_format, config.log_level)
    logs.take_stderr()
    if config.artifact and not os.path.isfile(config.artifact):
        raise ConfigError(f"--artifact {config.artifact}: no such file; nothing was loaded")
    tune_allocator()
    sys.setswitchinterval(SWITCH_S)
    try:
        asyncio.run(Agent(config, load).run())
    except* LbError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[LbError]) -> LbError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LbError)
    return error


class Agent:
    """One run of the daemon."""

    def __init__(self, config: Config, load: Callable[[], Config]) -> None:
        self._config = config
        self._load = load
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._closing = ExitStack()
        self._fresh = False  # nothing was pinned before
        self._started = False

    async def run(self) -> None:
        """Start everything in order, serve, and stop without touching the datapath."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)  # during the start too: it would end the process
        with self._closing:
            try:
                await self._build_and_serve()
            except Exception:
                await self._take_back()
                raise

    async def _build_and_serve(self) -> None:
        components = await self._build()
        serving = asyncio.create_task(self._serve(components))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            notify("STOPPING=1")
            log.info("stopping; programs and maps stay and go on serving")
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    async def _take_back(self) -> None:
        """Leave nothing behind of a first start that failed: 100 MiB of pinned maps without a use."""
        if self._fresh and not self._started:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # pyroute2 leaves a task behind
            with suppress(LbError, OSError):
                await asyncio.to_thread(remove_pins, pins.pin_dir(self._config.bpffs))

    # --- building ---

    async def _build(self) -> AgentComponents:
        """Take the lock, open the maps, read what an earlier agent left. Blocks for some milliseconds."""
        config = self._config
        operator, sources = build_sources(config)
        pools = FollowedFile(config.announce)
        announced = parse_pools(pools.text, config.announce) if pools.text is not None else None
        require_kernel()
        mounted = pins.ensure_pin_dir(config.bpffs)
        root = pins.pin_dir(config.bpffs)
        lock = AgentLock(root)
        lock.take()
        self._closing.callback(lock.release)
        self._fresh = not any(root.iterdir())
        require_socket(socket_file(config.socket))
        further = layer_settings.further_sources(config, generation.pinned_further(root))
        sizes, settings = layer_settings.sizes(config), layer_settings.program_settings(config, further)
        resized = await asyncio.to_thread(
            resize_at_start, config.bpffs, sizes, lambda: self._artifact(config), settings
        )
        maps = KernelMaps.open(config.bpffs, resized.sizes)
        self._closing.callback(maps.close)
        prove_lost_ports(maps)
        paths = layer_settings.path_settings(config, further)
        network = NetworkFollower(maps, paths, layer_settings.longest_timeout_s(config))
        self._closing.callback(network.close)
        bpf = BpfTarget.open(maps, network, config.name_of_node, are_new=self._fresh)
        bpf.limit_endpoints(config.max_endpoints_per_namespace)
        bpf.resync_s = config.resync_interval
        bpf.linger_s = layer_settings.linger_s(config)
        bpf.use_further_sources(further=bool(config.snat_address))
        if bpf.restored:
            for source in sources:
                source.resume()
        resolver, owners = Resolver(layer_settings.resolve_options(config)), FrontendOwners(config.state_dir)
        resolver.set_previous_owner(owners.read())
        loop = SyncLoop(resolver, sources, targets=[bpf])
        loop.on_owners = owners.changed
        events = event_sinks(sources)
        loop.on_messages = MessageEvents(events).update
        log.info(
            "agent starts",
            extra={
                "version": lbagent.__version__,
                "node": config.name_of_node,
                "restored": bpf.restored,
            },
        )
        components = AgentComponents(
            config, maps, network, sources, operator, loop, bpf, owners, events=events,
            further=further, lock=lock, mounted_bpffs=mounted, problems=resized.problems,
        )  # fmt: skip
        if announced is not None:
            components.announcer, components.pools = build_announcer(components, announced), pools
        components.native = build_native(components)
        return components

    # --- running ---

    async def _serve(self, components: AgentComponents) -> None:
        view = AgentFacade(components)
        loop = components.loop
        components.node_servers = NodeServers(
            components.config, loop, components.bpf, components.sources,
            lambda: loop.local_node().node_port_addresses, components.events, lambda: components.ready,
        )  # fmt: skip
        server = ApiServer(view, components.config.socket, components.config.metrics_address)
        await server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(components.node_servers.run(server.answer_metrics))
                await self._start(components, group)
        finally:
            await server.close()

    async def _start(self, components: AgentComponents, group: asyncio.TaskGroup) -> None:
        """Start what runs for ever, in the order of the module's first lines."""
        config, loop, bpf = components.config, components.loop, components.bpf
        await components.network.start()
        follow_addresses = address_follower(components)
        follow_addresses(components.network.network)
        require_devices(components.network.network, config)
        loading = group.create_task(asyncio.to_thread(self._load_programs, components))
        for source in components.sources:
            group.create_task(source.run(loop.inbox.feed(source)))
        components.network.on_paths = bpf.paths_changed
        # a frontend that could not be written still has backends of an earlier State
        components.network.backends_in_use = lambda: None if bpf.failing else each_backend(bpf.state)
        group.create_task(components.network.run())
        group.create_task(loop.run())
        if components.owners is not None:
            group.create_task(components.owners.run(loop))
        components.datapath = await loading
        self._closing.callback(components.datapath.close)
        await wait_at_start(bpf.first_pass, "the first full list of every source")
        components.devices = DeviceKeeper(components.maps, components.datapath, config)
        components.devices.on_attached = components.network.use_devices
        components.devices.refusing_of = components.network.refusing_of
        await components.devices.start(components.network.network)
        components.network.on_network = both(components.devices.follow, follow_addresses)
        group.create_task(components.devices.run())
        if components.announcer is not None and components.pools is not None:
            start_announcer(components, components.announcer, components.pools, group)
        else:
            group.create_task(end_left_bird(config.state_dir))
        components.sweeper = Sweeper(
            components.maps,
            lambda: components.datapath.in_force if components.datapath else [],
            config.sweep_interval,
            bpf.flows_of_backends,
            bpf.former,
        )
        group.create_task(components.sweeper.run())
        if components.native is not None:
            group.create_task(components.native.reset.run(lambda: loop.settled(bpf)))
            group.create_task(components.native.source.follow_maps(lambda: loop.settled(bpf)))
        if config.has_socket_programs:
            group.create_task(DeadPeers(components.maps, bpf.is_former_backend).run(bpf.changed_from))
        group.create_task(Reloader(components, self._load, self._reload).run())
        components.conditions = ConditionMonitor(components, every_check())
        await components.conditions.look()  # `status` tells the truth from the first moment on
        group.create_task(components.conditions.run())
        group.create_task(keep_watchdog())
        components.started = self._started = True
        notify("READY=1")
        group.create_task(keep_memory_small(lambda: bpf.counts.writes))
        if bpf.ready.is_set():
            state = bpf.state
            found = {"services": len({svc.name for svc in state.services}), "generation": state.generation}
            log.info("ready", extra=found)
        else:
            log.warning("started, not ready", extra={"reason": bpf.waiting})

    @staticmethod
    def _artifact(config: Config) -> Artifact:
        return artifact.load(Path(config.artifact)) if config.artifact else builder.ensure_artifact()

    def _load_programs(self, components: AgentComponents) -> Datapath:
        """Bring the programs in force (in a thread: the verifier takes its time)."""
        config, maps = components.config, components.maps
        found, root = self._artifact(config), pins.pin_dir(config.bpffs)
        settings = layer_settings.program_settings(config, components.further)
        hooks = expected_hooks(components.network.network, config)
        return datapath.start(root, found, maps.fds, maps.sizes, settings, hooks=hooks)


def prove_lost_ports(maps: KernelMaps) -> None:
    """Let flows prove their SNAT ports where the slots are new: a flow of an earlier agent that has none then gets one again.

    Without it such a flow would send from a port that no reply is translated at, until it ends. Raises KernelError.
    """
    lost = sorted({"lb4_snat", "lb6_snat"} & maps.created)
    if lost:
        trust_ages(maps, 0)
        log.debug("flows prove their SNAT ports until the first sweep", extra={"new_maps": lost})


def address_follower(components: AgentComponents) -> Callable[[NodeNetwork], None]:
    """Return a function that lets NodePorts, and binds to every address, follow the addresses that the node has."""
    known = layer_settings.resolve_options(components.config)

    def follow(network: NodeNetwork) -> None:
        nonlocal known
        before, known = known, layer_settings.resolve_options(components.config, network)
        if known != before:
            components.loop.replace_resolver(Resolver(known))

    return follow


def build_announcer(components: AgentComponents, pools: PoolsFile) -> Announcer:
    """Return what announces addresses. With a Kubernetes API, Leases say which node does; without one this node does."""
    config, loop, network = components.config, components.loop, components.network
    election = None
    if config.has_kubernetes:
        folder = os.path.join(config.state_dir, "announce")  # the source's credentials are the source's to remove
        settings = KubeSettings(kubeconfig=config.kubeconfig, node_name=config.name_of_node, state_dir=folder)
        contact = next((each.contact for each in components.sources if isinstance(each, KubeSource)), None)
        election = LeaseElection(KubeClient(settings, contact), config.name_of_node, pools.l2.lease_duration_s)

    def objects() -> ObjectSnapshot | None:
        is_complete = not loop.waiting and all(source.trusted or source.listed for source in components.sources)
        return loop.inbox.store.snapshot() if is_complete and components.bpf.first_pass.is_set() else None

    (runner,) = (each for each in loop.runners if each.target is components.bpf)

    around = AnnouncerInputs(
        objects,
        lambda: network.network,
        lambda: components.devices.announcing_devices() if components.devices else (),
        lambda: network.watcher.neighbours().carriers,
        lambda: components.bpf.current_state,
        lambda: runner.pending_since is None,
    )
    return Announcer(
        config.name_of_node, pools, components.maps, around,
        election=election, events=components.events, external_ips=config.external_ips,
        external_ip_ranges=layer_settings.external_ip_ranges(config),
    )  # fmt: skip


def start_announcer(
    components: AgentComponents, announcer: Announcer, file: FollowedFile, group: asyncio.TaskGroup
) -> None:
    """Announce, and follow what decides over it: objects, devices, the file of pools."""
    components.loop.on_objects = announcer.objects_changed
    components.network.on_network = both(components.network.on_network, announcer.network_changed)
    routes = build_routes(components, announcer)
    group.create_task(routes.run())
    group.create_task(announcer.run())
    group.create_task(follow_state(components.bpf, announcer))
    group.create_task(file.follow(lambda text: announcer.use_pools(parse_pools(text, file.path))))


async def follow_state(bpf: BpfTarget, announcer: Announcer) -> None:
    """Wake the announcer for ever whenever the maps hold another State."""
    generation = bpf.generation
    while True:
        generation = await bpf.changed_from(generation)
        announcer.state_changed()


def both(*followers: Callable[[NodeNetwork], None]) -> Callable[[NodeNetwork], None]:
    """Return a function that tells all of them."""

    def follow(network: NodeNetwork) -> None:
        for each in followers:
            each(network)

    return follow


def build_native(components: AgentComponents) -> NativePools | None:
    """Return what serves native pools beside their source."""
    source, bpf = native_pools(components.sources), components.bpf
    if source is None:
        return None
    reset = ConnectionReset(components.maps, source.pools_with_addresses, lambda: bpf.current_state)
    source.on_down = reset.server_down
    return NativePools(source, reset)


def build_routes(components: AgentComponents, announcer: Announcer) -> BgpRoutes:
    """Return what announces addresses by BGP; the announcer tells it which."""
    config, network = components.config, components.network
    folder = os.path.dirname(os.path.abspath(config.announce))
    speaker = BgpSpeaker(config.state_dir, config.name_of_node, lambda: network.network, password_folder=folder)

    def section() -> BgpSection | None:
        if announcer.wanted is None:
            return None
        node = announcer.objects.nodes.get(announcer.node)
        return BgpSection(announcer.pools.bgp, node.labels if node else {})

    components.speaker = speaker
    announcer.routes = BgpRoutes(speaker, section)
    return announcer.routes
