"""The composition root: builds every part, starts them in order, stops them and leaves the datapath serving.

Order at start: the data plane is opened; then side by side the data plane and the sources' first lists; then the first
reconciliation, and only then packets meet it. Until then whatever an earlier agent left continues to serve, unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import lbagent
from lbagent.agent import layer_settings
from lbagent.agent.config_in_force import ConfigInForce
from lbagent.agent.core_parts import CoreParts
from lbagent.agent.frontend_owners import FrontendOwners
from lbagent.agent.last_status import LastStatus
from lbagent.agent.migration import Migration
from lbagent.agent.notify import keep_watchdog, notify, wait_at_start
from lbagent.agent.parts import Parts, build_parts, capabilities
from lbagent.agent.reload import Follower, Reloader
from lbagent.agent.sources import build_sources, event_sinks, native_pools, reconfigure_sources
from lbagent.announce.bgp.left_bird import end_left_bird
from lbagent.api.server import ApiServer, require_socket, socket_file
from lbagent.config import Config
from lbagent.errors import ConfigError, LbError
from lbagent.model.state import State
from lbagent.net.snapshot import NodeNetwork
from lbagent.objects.object_event import MessageEvents
from lbagent.objects.source import Source
from lbagent.observe import log as logs
from lbagent.process_memory import keep_memory_small, tune_allocator
from lbagent.resolve import Resolver
from lbagent.sources.backend_health import BackendHealthSource
from lbagent.sync.generation_history import GenerationHistory
from lbagent.sync.loop import SyncLoop
from lbagent.targets.data_plane import DataPlane, Feature, LeftOver, MarkingPlane, ObservingPlane
from lbagent.targets.joined_plane import JoinedPlane
from lbagent.targets.renderers import data_planes, left_over, translating
from lbagent.textfile.followed_file import FollowedFile

if TYPE_CHECKING:
    from lbagent.apilb.native.pool_rows import NativePools

log = logging.getLogger(__name__)
SWITCH_S = 0.0005  # a thread that reads a large file, or copies one, holds up a change for so long at most


def run_agent(load: Callable[[], Config]) -> None:
    """Run the agent until SIGTERM or SIGINT; `load` reads the configuration, again at each SIGHUP.

    Raises LbError with the exit code of what could not be done.
    """
    migration = Migration(load)
    config = migration.load()
    logs.setup(config.log_format, config.log_level)
    logs.take_stderr()
    if config.artifact and not os.path.isfile(config.artifact):
        raise ConfigError(f"--artifact {config.artifact}: no such file; nothing was loaded")
    tune_allocator()
    sys.setswitchinterval(SWITCH_S)
    while _runs_again(config, migration):
        config = migration.load()


def _runs_again(config: Config, migration: Migration) -> bool:
    """Run an agent to its end; return whether a migration starts another one in its place. Raises LbError."""
    request = migration.begin(config)
    agent = Agent(config, migration)
    try:
        _run(agent)
    except LbError as error:
        if request is None or not request.serves or agent.has_started:
            raise
        migration.failed(error)
        return True
    except Exception as error:
        from lbagent.agent.crash_record import write_crash_record

        write_crash_record(config, error, agent.service_names())
        raise
    if agent.is_ending or migration.requested is None:
        return False
    if not migration.requested.serves:
        migration.take_out(config)
    return True


def _run(agent: Agent) -> None:
    """Run an agent to its end. Raises LbError."""
    failure: LbError | None = None
    try:
        asyncio.run(agent.run())
    except* LbError as group:  # what is raised here would be in a group again
        failure = _first(group)
    if failure is not None:
        raise failure


def _first(group: BaseExceptionGroup[LbError]) -> LbError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LbError)
    return error


class Agent:
    """One run of the daemon."""

    def __init__(self, config: Config, migration: Migration) -> None:
        self._config = config
        self._migration = migration
        self._stop = asyncio.Event()
        self._is_ending = False  # by a signal
        migration.again = self._stop.set
        self._reload = asyncio.Event()
        self._closing = ExitStack()
        self._planes: Sequence[DataPlane] = ()  # the serving one first
        self._left: LeftOver | None = None  # the other data plane of an earlier agent, from which this one takes over
        self._started = False
        self._last_state: Callable[[], State] = State

    @property
    def is_ending(self) -> bool:
        """Whether a signal ended it."""
        return self._is_ending

    @property
    def has_started(self) -> bool:
        """Whether it served, or compared."""
        return self._started

    def service_names(self) -> dict[int, str]:
        """Return NAMESPACE/NAME by id of each frontend in force."""
        return {svc.id: str(svc.name) for svc in self._last_state().services}

    def _end(self) -> None:
        self._is_ending = True
        self._stop.set()

    async def run(self) -> None:
        """Start everything in order, serve, and stop without touching the datapath."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)  # during the start too: it would end the process
        with self._closing:
            try:
                await self._build_and_serve()
            except Exception:
                await self._take_back()
                raise

    async def _build_and_serve(self) -> None:
        parts = await self._build()
        self._last_state = lambda: parts.core.shown.state
        serving = asyncio.create_task(self._serve(parts))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            if self._migration.requested is None:
                notify("STOPPING=1")
            log.info("stopping; what is in force continues to serve")
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    async def _take_back(self) -> None:
        """Leave nothing behind of a first start that failed."""
        for plane in self._planes if not self._started else ():
            await asyncio.to_thread(plane.take_back)

    # --- building ---

    async def _build(self) -> Parts:
        """Open the data planes, and build all parts. Blocks for some milliseconds."""
        config = self._config
        operator, sources = build_sources(config)
        planes = data_planes(config)
        require_features(config, planes[0])
        file, pools = FollowedFile(config.announce), None
        if file.text is not None:
            from lbagent.pools.read_pools import parse_pools

            pools = parse_pools(file.text, config.announce)
        problems: dict[str, str] = {}
        if config.shadow:
            left = await asyncio.to_thread(self._migration.left_over)
        else:
            left = await asyncio.to_thread(left_over, config, [plane.name for plane in planes])
        self._planes = planes
        if left is not None:
            self._closing.callback(left.close)
            await left.open(planes[0], lambda: require_socket(socket_file(config.socket)))
            self._left = left
        for plane in planes:
            if self._migration.replaces_proxy:
                plane.replace_proxy()
            self._closing.callback(plane.close)
            problems |= await plane.open(lambda: require_socket(socket_file(config.socket)))
        plane = planes[0]
        if plane.restored:
            for source in sources:
                source.resume()
        resolver, owners = Resolver(layer_settings.resolve_options(config)), FrontendOwners(config.state_dir)
        resolver.set_previous_owner(owners.read())
        marking = [each for each in planes if isinstance(each, MarkingPlane)]
        health = BackendHealthSource(
            config.state_dir,
            lambda backend: next((mark for each in marking if (mark := each.check_mark(backend))), 0),
            next((each for each in planes if isinstance(each, ObservingPlane)), None),
        )
        loop = SyncLoop(resolver, [*sources, health], targets=planes)
        if not config.shadow:  # the proxy that serves has no checks
            loop.on_checked = health.check
        loop.on_owners = owners.changed
        events = () if config.shadow else event_sinks(sources)  # the proxy that serves reports to the API
        translate = translating(planes)
        shown = JoinedPlane(translate) if len(translate) > 1 else plane
        history = GenerationHistory(config.state_dir, loop.causes)
        core = CoreParts(
            ConfigInForce(config, problems), operator, sources, events, loop, planes, shown, owners, history, health
        )
        loop.on_messages = MessageEvents(core.events).update
        follow_generations(core)
        log.info(
            "agent starts",
            extra={"version": lbagent.__version__, "node": config.name_of_node, "restored": plane.restored},
        )
        announcing = None
        if pools is not None:
            from lbagent.agent.announcing import build_announcing

            announcing = build_announcing(core, file, pools)
        liveness = None
        if config.node_liveness != "off":
            from lbagent.agent.watching_nodes import build_liveness

            liveness = build_liveness(core, announcing)
        return build_parts(core, self._migration, announcing, build_native(sources, plane), liveness)

    # --- running ---

    async def _serve(self, parts: Parts) -> None:
        in_force = parts.core.in_force
        config = in_force.config
        server = ApiServer(capabilities(parts), in_force.by_key, config.socket, config.metrics_address, config.ui_hosts)
        await server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(parts.node_servers.run(server.answer_metrics))
                group.create_task(parts.drains.run())
                await self._start(parts, group)
        finally:
            await server.close()

    async def _start(self, parts: Parts, group: asyncio.TaskGroup) -> None:
        """Start what runs until the end, in the order of the module's first lines."""
        in_force, sources, loop, plane = parts.core.in_force, parts.core.sources, parts.core.loop, parts.core.plane
        plane.on_network = address_follower(in_force, loop)
        for each in parts.core.planes:
            await each.start(group)
        for source in sources:
            group.create_task(source.run(loop.inbox.feed(source)))
        group.create_task(parts.core.health.run(loop.inbox.feed(parts.core.health)))
        if parts.liveness is not None:
            group.create_task(parts.liveness.run())
        group.create_task(loop.run())
        group.create_task(parts.core.owners.run(loop))
        group.create_task(parts.core.history.run())
        group.create_task(LastStatus(in_force.config.state_dir, parts.status.now).run())
        await wait_at_start(plane.first_pass, "the first full list of every source")
        await plane.serve(group)
        for each in parts.core.planes[1:]:
            group.create_task(serve_after_first_pass(each, group))
        if self._left is not None:
            group.create_task(self._end_left(self._left))
        followers: list[Follower] = [lambda new, _changed: reconfigure_sources(sources, new)]
        if parts.announcing is not None:
            from lbagent.agent.announcing import start_announcing

            start_announcing(parts.announcing, loop, plane, group)
            followers.append(parts.announcing.reconfigure)
        elif Feature.ANNOUNCE in plane.features:
            group.create_task(end_left_bird(in_force.config.state_dir))
        if parts.native is not None:
            group.create_task(parts.native.reset.run(lambda: loop.settled(plane)))
            group.create_task(parts.native.source.follow_maps(lambda: loop.settled(plane)))
        group.create_task(
            Reloader(in_force, loop, parts.core.planes, followers, self._migration.load, self._reload).run()
        )
        await parts.status.conditions.look()  # `status` is complete from the start
        group.create_task(parts.status.conditions.run())
        group.create_task(parts.verification.run())
        group.create_task(keep_watchdog())
        parts.status.started = self._started = True
        notify("READY=1")
        group.create_task(keep_memory_small(lambda: plane.counts.writes))
        if plane.ready.is_set():
            state = plane.state
            found = {"services": len({svc.name for svc in state.services}), "generation": state.generation}
            log.info("ready", extra=found)
        else:
            log.warning("started, not ready", extra={"reason": plane.waiting})

    async def _end_left(self, left: LeftOver) -> None:
        await left.run()
        self._migration.forget_left()


async def serve_after_first_pass(plane: DataPlane, group: asyncio.TaskGroup) -> None:
    """Let packets meet what a further data plane puts in force first. Raises LbError."""
    await plane.first_pass.wait()
    await plane.serve(group)


def require_features(config: Config, plane: DataPlane) -> None:
    """Raise ConfigError where the configuration needs what the data plane cannot do."""
    for key, feature, lack in (
        ("announce", Feature.ANNOUNCE, "announces no addresses"),
        ("apilb", Feature.SOCKETS, "does not serve the sockets of this node"),
    ):
        if getattr(config, key) and feature not in plane.features:
            raise ConfigError(f"--{key} needs --renderer bpf: {plane.name} {lack}")


def address_follower(in_force: ConfigInForce, loop: SyncLoop) -> Callable[[NodeNetwork], None]:
    """Return a function that lets NodePorts, and binds to every address, follow the addresses that the node has."""
    known = layer_settings.resolve_options(in_force.config)

    def follow(network: NodeNetwork) -> None:
        nonlocal known
        before, known = known, layer_settings.resolve_options(in_force.config, network)
        if known != before:
            loop.replace_resolver(Resolver(known), "addresses of the node")

    return follow


def follow_generations(core: CoreParts) -> None:
    """Have the history take each generation of what translates packets."""
    for runner in core.loop.runners:
        if runner.target in core.translating:
            runner.on_in_force.append(core.history.follow(core.shown))


def build_native(sources: Sequence[Source], plane: DataPlane) -> NativePools | None:
    """Return what serves native pools beside their source."""
    source = native_pools(sources)
    if source is None:
        return None
    from lbagent.apilb.native.connection_reset import ConnectionReset
    from lbagent.apilb.native.pool_rows import NativePools

    reset = ConnectionReset(plane.frontends_of_sockets, source.pools_with_addresses, lambda: plane.current_state)
    source.on_down = reset.server_down
    return NativePools(source, reset)
