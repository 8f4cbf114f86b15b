"""NftWriter: makes the table what Services ask for, change by change.

It keeps the rows of each Service and the RuleSet made of them. After an error, or where another program changed the table, the
next write compares everything with what is there. The work is done in pieces, between which other tasks run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from lbagent.errors import KernelError
from lbagent.model.address import L3n4Addr, Scope
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.net.conntrack import Conntrack
from lbagent.render.renderer_types import Difference
from lbagent.targets.nftables.backends_gone import BackendUse
from lbagent.targets.nftables.chains import TableSettings
from lbagent.targets.nftables.findings import findings
from lbagent.targets.nftables.map_specs import backend_value, frontend_key
from lbagent.targets.nftables.nft_table import NftTable
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.removed_chains import RemovedChains
from lbagent.targets.nftables.removed_frontends import RemovedFrontends
from lbagent.targets.nftables.rule_set import CHUNK_ELEMENTS, OF_NODE, Elements, RuleSet, RuleSetDiff, compare

log = logging.getLogger(__name__)
Rows = Sequence[SVC]
_BETWEEN_YIELDS = 32  # Services
_FEW = 8
SHARED = ("protocols", *OF_NODE, "local4", "local6", "hairpin4", "hairpin6")  # maps of no single Service


class NftWriter:
    """Writes one table."""

    def __init__(self, settings: TableSettings, place: NodePlace) -> None:
        self.settings = settings
        self.place = place
        self.rules = RuleSet(settings, place.is_local)
        self.rows: dict[ServiceName, Rows] = {}
        self.transactions = 0
        self.table = NftTable(settings.table)
        self.conntrack = Conntrack()
        self.kept = 0  # frontends of an earlier agent that stay because a source is not complete
        self._busy = asyncio.Lock()  # one use of the table at a time
        self._generation = -1  # of all tables, after the last write or comparison
        self._is_touched = False  # another program changed some table between two writes
        self._is_synced = self._must_compare = False
        self._is_moved = False  # the rules of all Services are made again
        self._is_partial = False  # a write that made them was cancelled: some of `rows` have no rules
        self._removed = RemovedFrontends()
        self._removed_chains = RemovedChains()
        self._use = BackendUse()
        self._stale_clients: set[tuple[bytes, bytes]] = set()  # frontend, backend: as keys and values of maps
        self._reported: set[tuple[ServiceName, str]] = set()

    def close(self) -> None:
        """Close the sockets; the table stays."""
        self.table.close()
        self.conntrack.close()

    def lose_sync(self) -> None:
        """Compare everything at the next write."""
        self._must_compare = True

    def leave_alone(self, frontends: Collection[L3n4Addr]) -> None:
        """Answer nothing for these when they go: another proxy has their packets."""
        self._removed.left_alone = {frontend_key(each.address, each.protocol, each.port) for each in frontends}

    def move(self, place: NodePlace) -> None:
        """Take another place: each backend is looked at again."""
        self.place = place
        self._is_moved = self._must_compare = True

    def reconfigure(self, settings: TableSettings) -> None:
        """Take other settings."""
        self.settings = settings
        self.move(self.place)

    # --- writing ---

    async def write(
        self,
        services: Mapping[ServiceName, Rows] | State,
        kept: frozenset[ServiceName] | None = None,
        changed: Collection[ServiceName] | None = None,
    ) -> None:
        """Make the table what these Services ask for; `kept`: nothing goes that they do not name, and these stay as they are.

        `changed` are the names of those that differ from the last call that did not fail; None: each is compared.

        Raises NotOurs, KernelError, OSError: the next write compares everything.
        """
        async with self._busy:
            was_synced, self._is_synced = self._is_synced and not self._must_compare, False
            began, own = self.table.generation(), self.table.transactions
            if was_synced and kept is None:  # what breaks off is compared the next time
                is_touched = self._is_touched or began != self._generation  # what is not compared may differ
                await self._write_changes(services, changed)
            else:
                self._must_compare = is_touched = False
                await self._write_all(_by_name(services), kept)
            self._generation = self.table.generation()
            own = self.table.transactions - own
            self._is_touched = is_touched or self._generation - began > own
            self._is_synced = kept is None
        self._report_unsupported()
        await self._end_connections()

    async def _write_changes(
        self, services: Mapping[ServiceName, Rows] | State, changed: Collection[ServiceName] | None
    ) -> None:
        work = self.rules.set_node(self.place.devices, self.place.nodes)
        work.merge(self._removed.expired(time.monotonic()))
        if changed is None:
            found = _by_name(services)
            changed = self._changed(found)
        else:
            found = _rows_of(services, changed)
        for number, name in enumerate(changed, 1):
            work.merge(self._take(name, found.get(name, ())))
            if len(work) >= CHUNK_ELEMENTS:
                self._put(work)
                work = RuleSetDiff()
            if number % _BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
        self._put(work)
        if gone := self._removed_chains.expired(time.monotonic()):
            self.transactions += self.table.write(gone)
        self.table.remember()

    def _changed(self, services: Mapping[ServiceName, Rows]) -> list[ServiceName]:
        before = self.rows
        changed = [name for name in before if name not in services]
        return changed + [name for name, rows in services.items() if not _is_same(before.get(name, ()), rows)]

    def _put(self, change: RuleSetDiff) -> None:
        now = time.monotonic()
        self._removed.answer(change, now)
        self._removed_chains.keep(change, now)
        if change:
            self.transactions += self.table.write(change)

    def _take(self, name: ServiceName, rows: Rows) -> RuleSetDiff:
        """Make a Service's rows the wanted ones."""
        old = self.rows.pop(name, ())
        if rows:
            self.rows[name] = rows
        self._use.change(old, rows)
        # A client is inside or outside, which its element does not have.
        self._stale_clients |= {(key, backend) for key, backend, _ in _sticky(old) - _sticky(rows)}
        return self.rules.update(name, rows)

    async def _write_all(self, services: Mapping[ServiceName, Rows], kept: frozenset[ServiceName] | None) -> None:
        """Compare everything with what is there, and put it right: first what comes and changes, last what goes."""
        wanted = {name: rows for name, rows in services.items() if not kept or name not in kept}
        changed, settings, place = self._changed(wanted), self.settings, self.place
        if self._is_moved:  # the old rules go first: with the new ones they would take twice the memory
            self.rules, self._is_partial = RuleSet(settings, place.is_local), True
        self.rules.set_node(place.devices, place.nodes)
        for number, name in enumerate(changed, 1):
            self._take(name, wanted.get(name, ()))
            if number % _BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
        if self._is_moved:
            made = frozenset(changed)
            for number, name in enumerate([name for name in self.rows if name not in made], 1):
                self.rules.update(name, self.rows[name])
                if number % _BETWEEN_YIELDS == 0:
                    await asyncio.sleep(0)
            self._is_partial = False
            self._is_moved = self.settings is not settings or self.place is not place  # meanwhile
        self._removed.forget()
        self._removed_chains.forget()
        chains, elements = self.rules.chains(), self.rules.elements()
        self.transactions += 1
        if self.table.exists() and not self.table.is_usable(self.rules.base):
            if kept is not None:  # it cannot be kept in part: it serves as it is until the sources are complete
                return
            self._use.add_left(self.table.read())
            self.table.create(chains, elements, fresh=True)
            self._finish(None)
            return
        self.table.create(chains, {}, fresh=False)
        found = await asyncio.to_thread(self.table.read)
        if kept is None:
            self._use.add_left(found)
        for chunk in self._missing(found, elements):
            self._put(chunk)
            await asyncio.sleep(0)
        rest = compare(await asyncio.to_thread(self.table.read), elements)
        rest.gone_chains = self.table.other_chains(chains)
        if kept is not None:
            self.kept = sum(len(gone) for name, gone in rest.deleted.items() if name.startswith("frontends"))
            rest.deleted, rest.gone_chains = {}, []
        self._put(rest)
        if kept is None:
            await asyncio.to_thread(self._forget_other_clients)
        self._finish(kept)

    def _finish(self, kept: frozenset[ServiceName] | None) -> None:
        self.kept = 0 if kept is None else self.kept
        self.table.remember()

    def _missing(self, found: Elements, wanted: Elements) -> Iterator[RuleSetDiff]:
        """Yield what is missing or differs: what Services share, then Service by Service, some at a time."""
        out = RuleSetDiff()
        for name in SHARED:
            for key, element in wanted[name].items():
                out.change(name, key, found[name].get(key), element)
        for rules in self.rules.services.values():
            for (name, key), element in rules.elements.items():
                out.change(name, key, found[name].get(key), element)
            if len(out) >= CHUNK_ELEMENTS:
                yield out
                out = RuleSetDiff()
        yield out

    # --- comparing ---

    async def differences(self) -> list[Difference]:
        """Return in what the table differs from what was written. Raises NotOurs, OSError."""
        async with self._busy:
            if not self.table.exists():
                return [Difference("missing", f"table inet {self.table.name} is not there")]
            began = self.table.generation()
            rules = self._made(self.rows) if self._is_partial else self.rules
            found = self.table.faults(rules.base)
            found += [
                Difference("differs", f"the rules of chain {name} were changed") for name in self.table.changed_chains()
            ]
            there = await asyncio.to_thread(self.table.read)
            found += findings(there, self.with_answers(rules.elements()))
            if not found and self._is_synced:
                self._generation, self._is_touched = began, False
            return found

    async def compared_with(self, services: Mapping[ServiceName, Rows]) -> list[Difference]:
        """Return in what the table differs from these Services, of which nothing is written. Raises NotOurs, OSError."""
        rules = self._made(services)
        async with self._busy:
            if not self.table.exists():
                return [Difference("missing", f"table inet {self.table.name} is not there")]
            chains, there = rules.chains(), await asyncio.to_thread(self.table.read)
            for nodes in ("nodes4", "nodes6"):  # an agent has them all
                there[nodes] = {}
            found = self.table.faults(rules.base)
            found += [Difference("stale", f"chain {name}") for name in self.table.other_hooked_chains(chains)]
            found += [Difference("missing", f"chain {name}") for name in self.table.missing_chains(chains)]
            return [*found, *findings(there, rules.elements())]

    def _made(self, services: Mapping[ServiceName, Rows]) -> RuleSet:
        rules = RuleSet(self.settings, self.place.is_local)
        rules.set_node(self.place.devices, self.place.nodes)
        for name, rows in services.items():
            rules.update(name, rows)
        return rules

    def with_answers(self, elements: Elements) -> Elements:
        """Return wanted elements with those that answer ended connections for a while."""
        return self._removed.in_force(elements)

    async def is_touched(self) -> bool:
        """Return whether another program may have changed a table since everything was compared. Raises OSError."""
        async with self._busy:
            return self._is_touched or self.table.generation() != self._generation

    def due(self) -> float | None:
        """Return when `write` has something to remove (monotonic seconds); None: it has not."""
        return min((at for at in (self._removed.due(), self._removed_chains.due()) if at is not None), default=None)

    # --- connections and clients ---

    async def _end_connections(self) -> None:
        """Delete connections and clients of backends that are gone. What fails is logged: packets go on as they are."""
        stale, self._stale_clients = self._stale_clients, set()
        try:
            if stale:
                self.table.forget_clients(lambda *client: client in stale)
            gone = self._use.take()
            if gone:
                count = await asyncio.to_thread(self.conntrack.end, gone)
                log.debug("connections of backends that are gone were deleted", extra={"connections": count})
        except (KernelError, OSError) as error:
            log.warning("connections of backends that are gone were not deleted", extra={"error": str(error)})

    def _forget_other_clients(self) -> None:
        """Delete clients of backends that a frontend does not have: they may have left while no agent was there."""
        known = {(key, backend) for rows in self.rows.values() for key, backend, _ in _sticky(rows)}
        self.table.forget_clients(lambda *client: client not in known)

    def _report_unsupported(self) -> None:
        now = set(self.rules.unsupported())
        for name, reason in sorted(now - self._reported):
            log.warning("nftables does not do all of a Service", extra={"service": str(name), "reason": reason})
        self._reported = now


def _by_name(services: Mapping[ServiceName, Rows] | State) -> Mapping[ServiceName, Rows]:
    if not isinstance(services, State):
        return services
    return State(0, services.services).by_name  # of a State that goes at once: an index that is kept takes memory


def _rows_of(
    services: Mapping[ServiceName, Rows] | State, names: Collection[ServiceName]
) -> Mapping[ServiceName, Rows]:
    """Return the rows of a few Services: the index of a State of 10,000 takes longer than everything else."""
    if not isinstance(services, State) or len(names) > _FEW:
        return _by_name(services)
    found: dict[ServiceName, list[SVC]] = {}
    for row in services.services:
        if row.name in names:
            found.setdefault(row.name, []).append(row)
    return found


def _is_same(one: Rows, other: Rows) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _sticky(rows: Iterable[SVC]) -> set[tuple[bytes, bytes, Scope]]:
    """Return each frontend with affinity and each of its backends for new connections."""
    found: set[tuple[bytes, bytes, Scope]] = set()
    for row in rows:
        if row.session_affinity:
            frontend = row.frontend
            key = frontend_key(frontend.address, frontend.protocol, frontend.port)
            backends = (backend_value(each.address.address, each.address.port) for each in row.selectable)
            found.update((key, backend, frontend.scope) for backend in backends)
    return found
