"""BpfTarget: the State in the pinned maps that the programs read.

A pass: keep what may not be taken away (retention) -> ids -> plan -> apply -> note what failed. After a start nothing is taken
away that may come from an untrusted source (retention.py). What fails is planned again by itself with growing pauses
(sync/failures.py), and no other service waits for it. Once the target is ready, the maps are compared with the Shadow every
`resync_s`, and put right where another process changed them (drift.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from lbagent.bpf.run.former_backends import FormerBackends
from lbagent.errors import LbError, MapFull
from lbagent.maps.flow_reader import Pair, pairs_of_backends, spilled_flows, udp_pairs
from lbagent.maps.lbmaps import LBMaps
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.backend import Backend, BackendState
from lbagent.model.cooperative import run_cooperatively
from lbagent.model.family import Family
from lbagent.model.ids import IdAssigner
from lbagent.model.service import SVC
from lbagent.model.state import State, next_generation
from lbagent.render.renderer_types import Difference
from lbagent.sync.backoff import Failure
from lbagent.sync.failures import Failures
from lbagent.sync.target_protocol import Desired, Provenance
from lbagent.targets.bpf.apply import Applied, applying
from lbagent.targets.bpf.backends import each_backend
from lbagent.targets.bpf.departures import coming_pairs, left_pairs, members, stale_pairs
from lbagent.targets.bpf.drift import collect, drift, path_drift
from lbagent.targets.bpf.echo_map import EchoMap
from lbagent.targets.bpf.extra_snat_paths import extra_snat_addresses, ids_of, of_backends
from lbagent.targets.bpf.namespace_use import BACKEND_IDS, SERVICE_IDS, largest_namespaces
from lbagent.targets.bpf.plan import PathProvider, plan_paths, planning
from lbagent.targets.bpf.proxy_route_keeper import ProxyRouteKeeper
from lbagent.targets.bpf.restore import Restored, give_ids, id_assigner, nothing_restored, restore
from lbagent.targets.bpf.retention import Retention, restored_backend, restored_state, restoring
from lbagent.targets.bpf.rules_keeper import FlowRulesKeeper
from lbagent.targets.bpf.shadow import PartialFrontend, may_name
from lbagent.targets.bpf.stale_backends import StaleBackends
from lbagent.targets.bpf.steps import Plan
from lbagent.targets.data_plane import Counts

log = logging.getLogger(__name__)
RESYNC_S = 60.0


class BpfTarget:
    """Owner of the ids and of the Shadow. A large pass is done in slices, between which the event loop runs other tasks."""

    name = "bpf"
    needs_facts = False

    def __init__(self, maps: LBMaps, restored: Restored, ids: IdAssigner, paths: PathProvider, node_name: str) -> None:
        """`restored` is what was read from the maps; `node_name` names the node of its local backends. Nothing is written yet."""
        self.ready = asyncio.Event()  # the first full State is in the maps
        self.first_pass = asyncio.Event()  # ready, or something waits while what is in the maps continues to serve
        self.wake = asyncio.Event()
        self.waiting = ""  # why nothing is removed yet
        self.state = State()  # as it is in the maps
        self.wanted = State()  # without ids; also what found no id
        self.counts = Counts()
        self.resync_s = RESYNC_S
        self.linger_s = 0.0  # how long the prefilter keeps addresses of frontends and backends that are gone
        self.shadow = restored.shadow
        self.former = FormerBackends(maps)  # what the sweeper takes from flows
        self.flow_rules = FlowRulesKeeper(maps)
        self.proxies = ProxyRouteKeeper()
        self.former.resolve_unknown = self._find_former_backends
        self.stale = StaleBackends(maps)  # those that are gone, of Services that keep their flows
        self._sole: dict[L3n4Addr, frozenset[int]] = {}  # of them in no slices: the frontends that keep it
        self._echo = EchoMap(maps)  # addresses whose pings are answered
        self._restored_backends = frozenset(address for address, _ in restored.backend_ids)
        self._restored_inside_rows = restored.inside_rows()
        self._retention: Retention | None = None  # while a source is untrusted since the start
        self._restored_state: State | None = None
        self._failures = Failures()
        self._largest: tuple[State, dict[str, dict[str, int]]] = (self.state, {})  # what was counted of it
        self.difference_count = 0  # that the last comparison found
        self._unread: list[LbError] = []  # the maps could not be read again
        self._broken_off = False  # the last pass ended by an exception
        self._paths_changed = False
        self._maps, self._ids, self._paths, self._node_name = maps, ids, paths, node_name
        ids.service_id_is_named, ids.backend_id_is_named = self._names_service, self._names_backend
        self.stale.use_ids(ids.service_ids.get, ids.backend_ids.get)
        self._changed = asyncio.Condition()  # notified after each pass
        self._busy = asyncio.Lock()  # held while Shadow and maps differ: during a pass, or a look at the maps

    @classmethod
    def open(cls, maps: LBMaps, paths: PathProvider, node_name: str, *, are_new: bool = False) -> BpfTarget:
        """Read what an earlier agent left in the maps, unless they `are_new`. Raises KernelError."""
        restored = nothing_restored(maps.sizes) if are_new else restore(maps)
        target = cls(maps, restored, id_assigner(restored, maps.sizes.backends), paths, node_name)
        target.former.unknown = not are_new  # no flow is in maps that are new
        if not are_new:
            frontends = {ident: frontend for frontend, ident in restored.service_ids}
            target.stale.restore(frontends, target._restored_backend)
        return target

    # --- what the loop and the status ask ---

    @property
    def generation(self) -> int:
        """Counter of the States in the maps."""
        return self.state.generation

    @property
    def failing(self) -> Mapping[L3n4Addr, Failure]:
        """Frontends that could not be written."""
        return self._failures.frontends

    @property
    def error(self) -> str:
        """What failed beside single frontends, '' when nothing does."""
        return str(self._failures.general.error) if self._failures.general else ""

    def retry_at(self) -> float | None:
        """Return when something that failed is due."""
        found = self._failures.retry_at(), self.stale.due()
        return min((at for at in found if at is not None), default=None)

    @property
    def retains(self) -> bool:
        """Whether the maps may hold what an earlier agent was given and no source has given to this one."""
        return not self.ready.is_set() and bool(self._retention or self.shadow.frontends)

    def restored_backends(self) -> Collection[L3n4Addr]:
        """Return the backends that were in the maps at the start, until the target is ready."""
        return self._restored_backends

    def restored_inside_rows(self) -> Collection[L3n4Addr]:
        """Return the frontends of scope INTERNAL that were in the maps at the start, until the target is ready."""
        return self._restored_inside_rows

    @property
    def restored(self) -> int:
        """Frontends in the maps, wildcard rows too: before the first pass those of an earlier agent."""
        return len(self.shadow.frontends)

    @property
    def retained(self) -> int:
        """Frontends that stay as the maps had them because a source is untrusted."""
        return self._retention.kept if self._retention else 0

    @property
    def current_state(self) -> State:
        """The State in the maps; before the first pass what an earlier agent left there."""
        if self.first_pass.is_set():
            return self.state
        if self._restored_state is None:
            self._restored_state = restored_state(self.shadow, self._node_name)
        return self._restored_state

    @property
    def frontends(self) -> int:
        """Frontends in the maps, wildcard rows not counted."""
        return sum(bool(frontend.port) for frontend in self.shadow.frontends)

    @property
    def backends(self) -> int:
        """Backends that a frontend in the maps names."""
        return len(self.shadow.refs)

    def backend_states(self) -> Counter[BackendState]:
        """Return how many backends are in which state."""
        return self.shadow.states()

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return (used, max) of every map it fills."""
        return self.shadow.pressure()

    def id_usage(self) -> dict[str, tuple[int, int]]:
        """Return (used, max) of the ids of backends and of frontends."""
        ids = self._ids
        kinds = {BACKEND_IDS: ids.backend_ids, SERVICE_IDS: ids.service_ids}
        return {name: (each.capacity - each.free, each.capacity) for name, each in kinds.items()}

    def largest_namespaces(self, table: str) -> dict[str, int]:
        """Return which namespaces use most of a map, or of the ids."""
        if self._largest[0] is not self.state:
            self._largest = (self.state, {})
        known = self._largest[1]
        if table not in known:
            written = tuple([svc for svc in self.shadow.frontends.values() if isinstance(svc, SVC)])
            known[table] = largest_namespaces(written, table)
        return known[table]

    def counter_ids(self, ident: int) -> list[int]:
        """Return the ids under which packets of a backend are counted: its own, and those of extra SNAT addresses."""
        return ids_of(self.shadow, ident)

    def extra_snat_addresses(self, backend: Backend) -> list[bytes]:
        """Return the extra SNAT addresses of a backend (with its id), also those that no device has now."""
        return extra_snat_addresses(self.shadow, backend.address.family, backend.id)

    def flows_of_backends(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Return live flows by backend id, those of extra SNAT addresses added to their backends."""
        return of_backends(self.shadow, counts)

    def is_former_backend(self, frontend: L3n4Addr, ident: int) -> bool:
        """Return whether a backend is none of a frontend that the maps hold; of one that they do not hold nothing is known."""
        if not self.ready.is_set():
            return False
        state, anywhere = self.state, bytes(len(frontend.address))  # what decides at loopback addresses
        for address in (frontend.address, anywhere):
            rows = [
                row
                for scope in Scope
                if (row := state.by_frontend.get(L3n4Addr(address, frontend.port, frontend.protocol, scope)))
            ] or state.ranges_of(L3n4Addr(address, frontend.port, frontend.protocol))
            if rows:
                return all(ident not in members(row, state) for row in rows)
        return False

    async def changed_from(self, generation: int) -> int:
        """Return the generation in the maps as soon as it is another one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.state.generation != generation)
        return self.state.generation

    # --- what happens beside the State ---

    def use_extra_snat_sources(self, *, extra_snat: bool) -> None:
        """Say whether flows may have extra SNAT addresses: new backends then get ids that leave room for these."""
        give_ids(self._ids, self._maps.sizes.backends, extra_snat=extra_snat)

    def limit_endpoints(self, per_namespace: int) -> None:
        """Limit how many backends the Services of one namespace have; 0 for no limit. What is served stays."""
        if self._ids.max_endpoints_per_namespace != per_namespace:
            self._ids.max_endpoints_per_namespace = per_namespace
            self.wake.set()

    def paths_changed(self) -> None:
        """Take note that the paths to backends may have changed."""
        self._paths_changed = True
        self.wake.set()

    async def watch(self) -> None:
        """Check every `resync_s` whether another process changed the maps, and put them right."""
        while True:
            await asyncio.sleep(self.resync_s)
            await self.ready.wait()
            try:
                await self.resync()
            except LbError as error:
                log.error("the maps could not be compared", extra={"error": str(error)})

    async def resync(self) -> list[Difference]:
        """Compare the maps with what was written, in slices; where they differ read them again and plan all again."""
        found = await collect(drift(self._maps, self.shadow), self._busy)
        for difference in found:
            log.warning("the maps were changed by another process", extra={"difference": str(difference)})
        if found:
            async with self._busy:
                self.shadow = restore(self._maps).shadow
            self.wake.set()
            self._echo.forget()
        wrong_echo = await self._wrong_echo()
        if wrong_echo:
            self._echo.forget()
            self.wake.set()
        found += wrong_echo
        wrong_paths = await self._wrong_paths()
        for difference in wrong_paths:
            log.error("a path differs from that of the state", extra={"difference": str(difference)})
        if wrong_paths:
            self.paths_changed()
        self.difference_count = len(found) + len(wrong_paths)
        return self._with_services(found + wrong_paths)

    async def differences(self) -> list[Difference]:
        """Return in what the maps differ from what was written, and the paths from those of the State. Raises KernelError."""
        found = await collect(drift(self._maps, self.shadow), self._busy)
        found += await self._wrong_echo() + await self._wrong_paths()
        self.difference_count = len(found)
        return self._with_services(found)

    def _with_services(self, found: Sequence[Difference]) -> list[Difference]:
        """Name the Service of each frontend that a State has."""
        if not found:
            return []
        names = {row.frontend.with_protocol(): str(row.name) for row in (*self.state.services, *self.wanted.services)}
        return [replace(each, service=names.get(each.frontend or "")) for each in found]

    async def _wrong_echo(self) -> list[Difference]:
        """Return what is wrong with the entries of lb_echo. Raises KernelError."""
        async with self._busy:
            return self._echo.differences(self.shadow)

    async def _wrong_paths(self) -> list[Difference]:
        """Return what is wrong with the paths, when no pass has changed them, or is going to, meanwhile."""
        state = self.state
        found = await collect(path_drift(self.shadow, state, self._paths.path), self._busy)
        return [] if self._paths_changed or state is not self.state else found

    # --- a pass ---

    async def reconcile(self, desired: Desired) -> None:
        """Bring the maps to the State. What fails is in `failing` and `error`."""
        async with self._busy:
            if self._broken_off:
                self.shadow = restore(self._maps).shadow
                self.former.forget_what_left()
            self._broken_off = True  # until the end: what an exception leaves in the maps is read again
            await self._pass(desired, time.monotonic())
            self._broken_off = False
        self.first_pass.set()
        self._restored_state = None
        async with self._changed:
            self._changed.notify_all()

    async def _pass(self, desired: Desired, now: float) -> None:
        await self._update_retention(desired.provenance)
        retained = self._with_retained(desired)
        assigned = await self._assigned(retained)
        if self._ids.errors and self._make_room():
            assigned = await self._assigned(retained)
        self._note_stale(self.stale.store)
        await self._write(self._numbered(assigned), now)
        if not self.ready.is_set() and self._retention is None:
            self._ids.release_restored()
            self._restored_backends = self._restored_inside_rows = frozenset()
            self.ready.set()
            self.former.forget_what_left()
        self._note_stale(self.stale.clean)
        self._end_flows_of_others()
        if self._ids.finds_more:  # what this pass took out of the maps makes room
            self.wake.set()

    def _note_stale(self, change: Callable[[], None]) -> None:
        """Change lb_stale_backend. What fails is tried again, and no Service waits for it: only a restart reads the map."""
        try:
            change()
        except LbError as error:
            self._unread.append(error)

    async def _assigned(self, state: State) -> State:
        """Assign ids to a State, with the backends that are gone and have flows."""
        self.wanted = self.stale.add_to(state, self._backends_of, retains=self._retention is not None)
        return await run_cooperatively(self._ids.assigning(self.wanted), time.monotonic)

    def _backends_of(self, frontend: L3n4Addr) -> Sequence[Backend]:
        """Return the backends that the maps have of a frontend."""
        entry = self.shadow.frontends.get(frontend)
        if not isinstance(entry, PartialFrontend):
            return entry.backends if entry is not None else ()
        found = (self._restored_backend(frontend, ident) for ident in sorted(entry.entries.backend_ids()))
        return [backend for backend in found if backend is not None]

    def _restored_backend(self, frontend: L3n4Addr, ident: int) -> Backend | None:
        return restored_backend(self.shadow, frontend.family, ident, self._node_name)

    def _make_room(self) -> bool:
        """Give the ids of backends that are gone, those that left first, to others that have none; return whether there are any."""
        short, ids = {frontend for frontend, _ in self._ids.errors}, self._ids.backend_ids
        rows = [svc for svc in self.wanted.services if svc.frontend in short]
        missing = {each.address for svc in rows for each in svc.backends if ids.get(each.address) is None}
        spaces = {svc.name.namespace for svc in rows} if self._ids.max_endpoints_per_namespace else None
        known = self.wanted.by_frontend

        def may_leave(frontend: L3n4Addr) -> bool:
            svc = known.get(frontend)
            return spaces is None or (svc is not None and svc.name.namespace in spaces)

        before = self.stale.evicted
        if not missing or not self.stale.evict(len(missing), may_leave):
            return False
        log.warning(
            "flows of backends that are gone end early: their ids are needed",
            extra={"backends": self.stale.evicted - before},
        )
        return True

    def _end_flows_of_others(self) -> None:
        """Have the flows ended that reach a backend in no slices by a frontend that does not keep it."""
        keepers: dict[L3n4Addr, set[int]] = {}
        for (service, _), address in self.stale.pairs().items():
            keepers.setdefault(address, set()).add(service)
        ids = self._ids
        sole = {
            address: frozenset(services)
            for address, services in keepers.items()
            if ids.backend_uses(ids.backend_ids.get(address) or 0) == len(services)
        }
        if sole == self._sole:
            return
        is_new = sole.keys() - self._sole.keys() or any(sole[each] != self._sole[each] for each in sole)
        if (
            lost := self._sole.keys() - sole.keys()
        ):  # in slices again, or gone for all: their connections stay, or end anyway
            idents = {ids.backend_ids.get(address) for address in lost}
            self.former.remove({pair for pair in self.former.of_all if pair[1] in idents})
        self._sole = sole
        if is_new:
            self.former.forget_what_left()

    async def flows_were_counted(self, held: Mapping[int, int], began_s: float, in_use: Collection[L3n4Addr]) -> None:
        """Let go of backends that are gone and have no flow. `in_use`: by sockets of the node. Raises KernelError."""
        found = self.stale.without_flows(held, began_s)
        if not found:
            return
        spilled = {flow.backend for family in Family for flow in spilled_flows(self._maps, family)}
        busy = set(of_backends(self.shadow, dict.fromkeys(spilled, 1))) if spilled else spilled
        if ended := [address for address, ident in found.items() if ident not in busy and address not in in_use]:
            self.stale.end(ended)
            self.wake.set()

    def _names_backend(self, ident: int) -> bool:
        """Return whether the maps may hold an entry of this backend id."""
        shadow = self.shadow
        return bool(shadow.refs.get(ident)) or not all(rows.is_clear(ident) for rows in shadow.backend_rows.values())

    def _names_service(self, ident: int) -> bool:
        """Return whether the maps may hold an entry of this service id although no State has it: a write failed."""
        shadow = self.shadow
        return any(may_name(entry, ident) for each in shadow.leftovers() if (entry := shadow.frontends.get(each)))

    async def _update_retention(self, provenance: Provenance | None) -> None:
        """Begin or end to retain: until each source was trusted once, nothing goes that may come from its objects."""
        untrusted = provenance.untrusted if provenance else ()
        if untrusted and self._retention is None and self.retains:
            work = restoring(self.shadow, self._node_name)
            self._retention = Retention(await run_cooperatively(work, time.monotonic))
        elif self._retention and not untrusted:
            self._end_retention()
        if self._retention:
            self._retention.sources = untrusted
            self.shadow.keep_unreferenced()
        else:
            self.waiting = ""

    def _end_retention(self) -> None:
        """Compare everything with the maps in this pass, so that what no object names goes."""
        try:
            self.shadow = restore(self._maps).shadow
        except LbError as error:
            self._unread.append(error)  # tried again as any other failure
        else:
            self._retention = None

    def _with_retained(self, desired: Desired) -> State:
        """Return the State with what may not be taken away, and log the reason when it is another one."""
        retention = self._retention
        if retention is None or desired.provenance is None:
            return desired.state
        state = retention.add_to(desired.state, desired.provenance)
        if retention.reason != self.waiting:
            log.warning("nothing is removed yet", extra={"reason": retention.reason})
        self.waiting = retention.reason
        return state

    def _numbered(self, assigned: State) -> State:
        """Count the States that were planned: a generation never comes twice."""
        return State(next_generation(self.state, assigned), assigned.services, assigned.delta)

    async def _write(self, desired: State, now: float) -> None:
        shadow = self.shadow
        deferred = self._failures.not_due(now)
        postponed = shadow.defer(deferred)
        in_use = bool(shadow.frontends)  # before the very first plan no packet can meet a new backend
        planned = await self._plan(desired)
        if planned.steps and in_use and await self._paths.resolve_neighbours():
            planned = await self._plan(desired)
        if self.former.waiting:
            coming = coming_pairs(planned, desired, shadow, every_protocol=bool(self.former.of_all))
            self.former.remove(coming)
        self.flow_rules.prepare(planned.changes)
        await self.proxies.prepare(planned.changes)
        if self.flow_rules.fresh:
            self.former.arrived.set()
        errors = (await self._apply(planned, now)).errors
        if planned.full_sync:
            self.former.forget_what_left()
        else:
            self.former.add(left_pairs(planned, desired, shadow))
        shadow.invalidate(postponed)
        self._retry_where_room_is(planned, now)
        errors += self._echo.follow(planned, shadow, self._paths.snat_addresses())
        errors += await self._write_paths(desired, now)
        self._paths.paths_planned()
        errors += self._unread
        self._unread.clear()
        self._note_failures(desired, errors, now)
        self.state = desired

    def _retry_where_room_is(self, planned: Plan, now: float) -> None:
        """Plan what waits for room again at once where it may have more: in a map, or of the share of its namespace.

        What leaves with this plan makes room after it; a share grows when others want less.
        """
        failures = self._failures
        short = {
            frontend: each.error for frontend, each in failures.frontends.items() if isinstance(each.error, MapFull)
        }
        if not short:
            return
        usage = self.shadow.pressure()
        larger = {name for name, room in planned.room.items() if usage[name][1] - usage[name][0] > room}
        if waiting := [
            frontend
            for frontend, error in short.items()
            if not error.maps.isdisjoint(larger) or _has_more(error.shares, planned.share_room)
        ]:
            failures.retry_now(waiting, now)
            self.wake.set()

    async def _find_former_backends(self) -> None:
        """Read which services and backends flows have, and note what is no longer of one another. Raises KernelError.

        Not before the whole State is in the maps: a backend that is retained may be of any group, or of none.
        """
        if not self.ready.is_set():
            return
        self.former.unknown = False  # what changes while the flows are read needs another reading
        try:
            found: set[Pair] = set()
            for family in Family:
                for pairs in udp_pairs(self._maps, family):
                    found |= pairs
                    await asyncio.sleep(0)
            others = await self._flows_of_others()
        except BaseException:
            self.former.unknown = True
            raise
        async with self._busy:
            self.former.add(stale_pairs(found, self.state, self.shadow))
            self.former.add((pair for pair, address in others if address in self._sole), of_all=True)

    async def _flows_of_others(self) -> list[tuple[Pair, L3n4Addr]]:
        """Return the pairs of flows to backends in no slices by frontends that do not keep them, each with the backend."""
        owners = {
            each: (address, services)
            for address, services in self._sole.items()
            for each in ids_of(self.shadow, self._ids.backend_ids.get(address) or 0)
        }
        out: list[tuple[Pair, L3n4Addr]] = []
        for family in Family if owners else ():
            for pairs in pairs_of_backends(self._maps, family, owners):
                for pair in pairs:
                    address, services = owners[pair[1]]
                    if pair[0] and pair[0] not in services and address.family is family:
                        out.append((pair, address))
                await asyncio.sleep(0)
        return out

    async def _plan(self, desired: State) -> Plan:
        work = planning(desired, self.shadow, self._paths.path, self._paths.snat_addresses())
        return await run_cooperatively(work, time.monotonic)

    async def _write_paths(self, desired: State, now: float) -> Sequence[LbError]:
        """Write the paths that changed since the last pass; return what failed."""
        if not self._paths_changed:
            return ()
        self._paths_changed = False
        done = await self._apply(plan_paths(self.shadow, each_backend(desired), self._paths.path), now)
        self._paths_changed |= bool(done.errors)
        return done.errors

    async def _apply(self, planned: Plan, now: float) -> Applied:
        began = time.monotonic()
        result = await run_cooperatively(applying(planned, self._maps, self.shadow, now, self.linger_s), time.monotonic)
        if not planned.steps and not planned.changes:
            return result  # takes over what is equal
        counts, failures = self.counts, self._failures
        counts.last_duration_s = time.monotonic() - began
        counts.syncs += 1
        counts.writes += result.entries
        failures.written(change.frontend for change in planned.changes if change.frontend not in result.failed)
        failures.failed(result.failed.items(), now)
        if result.entries or result.failed:
            log.log(
                logging.INFO if result.entries else logging.DEBUG,  # one more try in vain: the failure was logged
                "plan applied",
                extra={
                    "entries": result.entries,
                    "frontends": len(planned.changes),
                    "failed": len(result.failed),
                    "ms": round(1000 * counts.last_duration_s, 1),
                },
            )
        return result

    def _note_failures(self, desired: State, errors: Sequence[LbError], now: float) -> None:
        """Note what failed beside single writes, and forget frontends that are no longer asked for."""
        failures, without_id = self._failures, self._ids.errors
        failures.failed(without_id, now)
        if failures.frontends:
            wanted = desired.by_frontend.keys() | {frontend for frontend, _ in without_id}
            gone = failures.frontends.keys() - wanted - self.shadow.leftovers()
            failures.written(gone)
            self.shadow.forget(gone)
        failures.failed_in_general(errors, now)
        self.counts.errors = failures.count


def _has_more(then: Mapping[tuple[str, str], tuple[int, int]], now: Mapping[tuple[str, str], tuple[int, int]]) -> bool:
    """Return whether a share has more room than when a frontend was refused; one that was not counted has enough."""
    return any(
        key not in now or any(more > room for more, room in zip(now[key], rooms, strict=True))
        for key, rooms in then.items()
    )
