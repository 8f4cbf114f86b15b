"""The pool files of this host as a source of objects: their instances, addresses of names, health, and free binds.

Every event sets one flag; one task then rebuilds all objects and reports the changes. Nothing here writes a map.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lbagent.apilb.native.followed_pools import FollowedPools, Read
from lbagent.apilb.native.kept_state import Kept, KeptFile
from lbagent.apilb.native.listeners_found import listener_at
from lbagent.apilb.native.pool_objects import (
    KIND,
    ServedInstance,
    ServerName,
    addresses_of,
    messages_of,
    objects_of,
)
from lbagent.apilb.native.server_names import Lookup, ServerNames, look_up
from lbagent.kernel import sock_diag
from lbagent.kernel.sock_diag import ConnectedSocket
from lbagent.model.address import L3n4Addr
from lbagent.model.message import Message
from lbagent.objects.message_log import MessageLog
from lbagent.objects.records import NATIVE_POOLS, EndpointSlice, ObjectChange, ObjectSnapshot, Service
from lbagent.objects.source import OnChange
from lbagent.probes.checker import Health
from lbagent.probes.health_checks import HealthChecks, Key
from lbagent.probes.kept_health import KeptHealth
from lbagent.probes.probe_spec import ProbeSpec

log = logging.getLogger(__name__)
POOL_FILE_POLL_INTERVAL_S = 0.25
WRITE_RETRY_DELAY_S = 5.0  # until the next write, after a failure, of the file for the next agent
LISTENERS_S = (
    1.0  # between two reads of this host's listeners; while a bind is in use, each poll of the files reads them too
)

Servers = dict[ServerName, tuple[L3n4Addr, ...]]
OnDown = Callable[[ServedInstance, L3n4Addr], None]


class PoolsReport(NamedTuple):
    """The pools of the reported objects, and the inputs of these objects."""

    pools: Sequence[ServedInstance]
    servers: Mapping[str, Servers]  # of each pool, by its key
    taken: Mapping[str, str]  # by key of a pool: address of the process that has its bind
    health: Mapping[Key, Health]


class NativeSource:
    """Implements objects.source.Source. Status and metrics show `shown`."""

    name = NATIVE_POOLS
    remedy = "restore the pool files; an empty folder means that there are no pools"
    held = 0
    remembered = False  # the state is stored before it is served

    def __init__(
        self,
        path: str,
        state_dir: str,
        read: Read,
        *,
        lookup: Lookup = look_up,
        listeners: Callable[[], Sequence[ConnectedSocket]] = sock_diag.tcp_listeners,
    ) -> None:
        """Read the stored state of an earlier agent; `run` reads the files."""
        self.synced = asyncio.Event()
        self.on_down: OnDown = lambda _pool, _server: None  # called when a server of a pool goes down
        self.pools: list[ServedInstance] = []
        self.servers: dict[str, Servers] = {}  # of each pool, by its key
        self.taken: dict[str, str] = {}  # by key of a pool: address of the process that has its bind
        self._changed, self._to_keep = asyncio.Event(), asyncio.Event()
        self._keeper = KeptFile(state_dir)
        kept = self._written = self._keeper.read()
        self._files = FollowedPools(path, read, kept.pools)
        self._names = ServerNames(self._changed.set, kept.addresses, lookup)
        self.health = HealthChecks(self._changed.set, {each.key: each.health for each in kept.health})
        self._listeners = listeners
        self._objects: dict[tuple[str, str], Service | EndpointSlice] = {}
        self._messages: list[Message] = []
        self._down: set[tuple[str, L3n4Addr]] = set()  # pools' keys and addresses
        self._message_log = MessageLog(log, "pool file refused")
        self._looked = 0.0  # at the listeners
        self.reported = PoolsReport((), {}, {}, {})
        self.in_force: PoolsReport | None = None  # the latest one that is in the maps
        self._has_reported = asyncio.Event()

    @property
    def trusted(self) -> bool:
        """Whether the pools of every file are known, at least from its last valid text."""
        return self._files.trusted

    @property
    def distrust(self) -> Message | None:
        """The error of the folder, or of a file that was never valid."""
        return self._files.distrust

    @property
    def listed(self) -> bool:
        """As `trusted`."""
        return self.trusted

    def snapshot(self) -> ObjectSnapshot:
        """Return the Services and slices of all pools."""
        objects = self._objects.values()
        return ObjectSnapshot(
            services={each.key: each for each in objects if isinstance(each, Service)},
            slices={each.key: each for each in objects if isinstance(each, EndpointSlice)},
        )

    def problems(self) -> Sequence[Message]:
        """Return the messages about files, binds and servers."""
        return self._messages

    def resume(self) -> None:
        """Do nothing: the stored state is read anyway."""

    async def run(self, on_change: OnChange) -> None:
        """Follow files, names, servers and listeners until cancelled."""
        try:
            await asyncio.to_thread(self._files.look)
            await self._look_at_listeners()
            self._update(on_change)
            self.synced.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep())
                group.create_task(self._look())
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    self._update(on_change)
        finally:
            self._names.close()
            self.health.close()

    async def _look(self) -> None:
        """Poll the files and the listeners until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POOL_FILE_POLL_INTERVAL_S)
            if await asyncio.to_thread(self._files.look):
                await self._look_at_listeners()  # before a new bind is served
                self._changed.set()
            elif self.taken or loop.time() - self._looked >= LISTENERS_S:
                before = self.taken
                await self._look_at_listeners()
                if self.taken != before:
                    self._changed.set()

    async def _look_at_listeners(self) -> None:
        self._looked = asyncio.get_running_loop().time()
        pools = self._files.pools()
        try:
            listeners = await asyncio.to_thread(self._listeners) if pools else ()
        except OSError as error:
            log.warning("the listeners of this host cannot be read", extra={"error": str(error)})
            return
        by_port: dict[int, list[ConnectedSocket]] = {}
        for each in listeners:
            by_port.setdefault(each.local[1], []).append(each)
        found = {pool.key: listener_at(pool.bind, by_port.get(pool.bind.port, ())) for pool in pools}
        self.taken = {key: place for key, place in found.items() if place}

    def pools_with_addresses(self) -> list[tuple[ServedInstance, list[L3n4Addr]]]:
        """Return the pools, each with the addresses of its servers."""
        found = [(pool, self.servers.get(pool.key, {})) for pool in self.pools]
        return [(pool, [each for group in servers.values() for each in group]) for pool, servers in found]

    # --- what status and metrics show ---

    @property
    def shown(self) -> PoolsReport:
        """The report in the maps; before there is one, the latest report."""
        return self.in_force or self.reported

    def shown_health(self, server: L3n4Addr, check: ProbeSpec) -> Health | None:
        """Return the health of a server, with its last check; None where it is not checked.

        A new result counts when the maps have it.
        """
        in_force, checker = self.shown.health.get((server, check)), self.health.checker(server, check)
        if checker is None or (in_force and in_force.up != checker.health.up):
            return in_force
        return checker.health

    async def follow_maps(self, settled: Callable[[], Awaitable[None]]) -> None:
        """Follow which report is in the maps until cancelled; `settled` returns when the maps contain all earlier reports."""
        while True:
            await self._has_reported.wait()
            self._has_reported.clear()
            reported = self.reported
            await settled()
            self.in_force = reported

    # --- building the objects ---

    def _update(self, on_change: OnChange) -> None:
        """Rebuild all objects; report the changes, then which servers went down."""
        self.pools = self._files.pools()
        self._names.use({server.host for pool in self.pools for server in pool.servers if server.address is None})
        known = self._names.addresses
        self.servers = {pool.key: addresses_of(pool, known) for pool in self.pools}
        self.health.use(
            {(each, pool.check) for pool in self.pools for group in self.servers[pool.key].values() for each in group}
        )
        objects: dict[tuple[str, str], Service | EndpointSlice] = {}
        down: set[tuple[str, L3n4Addr]] = set()
        messages = self._files.messages()
        for pool in self.pools:
            servers = self.servers[pool.key]
            messages += messages_of(pool, servers, known)
            if pool.key in self.taken:
                messages.append(_taken(pool, self.taken[pool.key]))
                continue
            every = {each: self.health.is_down(each, pool.check) for group in servers.values() for each in group}
            down |= {(pool.key, each) for each, is_down in every.items() if is_down}
            service, slices = objects_of(pool, servers, every)
            objects["Service", service.key] = service
            objects |= {("EndpointSlice", piece.key): piece for piece in slices}
        self.reported = PoolsReport(self.pools, self.servers, self.taken, self.health.all())
        self._has_reported.set()
        self._report(on_change, objects, messages + self._further_messages())
        self._to_keep.set()
        newly, self._down = down - self._down, down
        for pool in self.pools:
            for key, server in newly:
                if key == pool.key:
                    self.on_down(pool, server)

    def _further_messages(self) -> list[Message]:
        found = [
            Message(text, "its last addresses stay in use", warning=True)
            for text in sorted(self._names.problems.values())
        ]
        checkers = (self.health.checker(*key) for key in self.health.results)
        unusable = sorted({each.problem for each in checkers if each is not None and each.problem})
        found += [Message(text, "servers are not checked, and keep their health") for text in unusable]
        if self._keeper.problem:
            found.append(Message(self._keeper.problem, "the pools are lost at a restart", warning=True))
        return found

    def _report(
        self, on_change: OnChange, objects: dict[tuple[str, str], Service | EndpointSlice], messages: list[Message]
    ) -> None:
        old, self._objects = self._objects, objects
        changes = [
            ObjectChange(kind, key, old.get((kind, key)), objects.get((kind, key)))
            for kind, key in dict.fromkeys((*old, *objects))
            if old.get((kind, key)) != objects.get((kind, key))
        ]
        is_new = messages != self._messages
        self._messages = messages
        if is_new:
            self._message_log.update(messages)
        if changes or is_new or not self.synced.is_set():
            on_change(changes)

    async def _keep(self) -> None:
        """Write the state for the next agent when it changes; retry after a failure."""
        while True:
            now = Kept(pools=self._files.kept(), addresses=self._names.kept(), health=_kept_health(self.health.all()))
            if _lasting(now) != _lasting(self._written) or self._keeper.problem:
                before = self._keeper.problem
                await asyncio.to_thread(self._keeper.write, now)
                self._written = now
                if self._keeper.problem != before:
                    self._changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_RETRY_DELAY_S if self._keeper.problem else None):
                    await self._to_keep.wait()
            self._to_keep.clear()


def _kept_health(found: Mapping[Key, Health]) -> tuple[KeptHealth, ...]:
    """Return the health of each server that was checked."""
    return tuple(KeptHealth.of(key, health) for key, health in found.items() if health.since)


def _lasting(kept: Kept) -> Any:
    """Return the state to store: without the text of each check."""
    return kept.pools, kept.addresses, [(each.address, each.check, each.up, each.since) for each in kept.health]


def _taken(pool: ServedInstance, place: str) -> Message:
    problem = (
        f"a process of this host listens on {place}: nothing is diverted from it; end it (`ss -ltnp 'sport = :{pool.bind.port}'`"
        " names it) or choose another bindAddress"
    )
    kept, origin = "the bind is not served", pool.origin
    return Message(problem, kept, "bindAddress", KIND, pool.full_name, origin.file, origin.line)
