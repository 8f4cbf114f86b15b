"""The loop: sources -> inbox -> resolve -> State, given to each target, which applies it.

No State is made before every source has reported its first full list. Each target has a task of its own (runner.py): the loop
waits for none of them. A single change is resolved at once, a burst of changes in steps between which other tasks run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.model.cooperative import BETWEEN_YIELDS, Cooperative, run_cooperatively, run_in_background
from lbagent.model.message import Message
from lbagent.model.state import State, next_generation, without_backends
from lbagent.objects.message_log import MessageLog
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.objects.source import Source
from lbagent.probes.backend_check import CheckedService
from lbagent.resolve import InForce, Resolver
from lbagent.resolve.frontends import LocalNode
from lbagent.resolve.overrides import Overrides
from lbagent.resolve.ownership import Contest, OwnedFrontends
from lbagent.resolve.resolver import KIND_ORDER, Resolution
from lbagent.sync.change_causes import ChangeCauses, cause_of, cut
from lbagent.sync.inbox import Inbox
from lbagent.sync.pacer import Pacer
from lbagent.sync.runner import TargetRunner
from lbagent.sync.sync_record import SyncRecord
from lbagent.sync.target_protocol import Desired, ObjectFacts, Provenance, Target

log = logging.getLogger(__name__)
START = "start of the agent"
Captured = tuple[ObjectSnapshot, State]


class SyncLoop:
    """Owner of the objects and their Resolver. The next pass takes the changes that are reported during a pass."""

    def __init__(self, resolver: Resolver, sources: Sequence[Source], targets: Sequence[Target]) -> None:
        self.inbox = Inbox(sources)
        self.before_first_pass: Callable[[], Awaitable[None]] = _nothing
        self.runners = [TargetRunner(target) for target in targets]
        self.state = State()  # the result of all objects, without ids; its generation never repeats
        self.messages: tuple[Message, ...] = ()  # problems between the objects
        self.contests: tuple[Contest, ...] = ()  # claims to frontends that another Service has
        self.waiting = ""  # why nothing was resolved yet
        self.on_messages: Callable[[Sequence[Message]], None] = lambda _messages: None  # called when they change
        self.on_objects: Callable[[], None] = lambda: (
            None
        )  # called after each pass, as objects or their sources may have changed
        self.on_checked: Callable[[Mapping[str, CheckedService]], None] = lambda _services: (
            None
        )  # called after each pass with the Services whose backends are checked
        self.on_owners: Callable[[], None] = lambda: None  # called when `owned_frontends` has changed
        self._owners_version = -1
        self._resolver = resolver
        self._next_resolver: Resolver | None = None
        self._resolution: Resolution | None = None
        self._provenance: Provenance | None = None
        self._facts: ObjectFacts | None = None
        self.causes = ChangeCauses()
        self._new_options = ""  # why the next pass resolves with other options
        self._dead_nodes: frozenset[str] = frozenset()
        self._resolved_dead_nodes = self._dead_nodes  # in the last pass
        self._left_out: frozenset[L3n4Addr] = frozenset()  # backends that no target gets
        self._left_out_before = self._left_out  # in the last pass
        self.record = SyncRecord()  # of the first target
        for runner in self.runners[:1]:
            runner.on_in_force.append(self.record.in_force)
        self._captures: list[asyncio.Future[Captured]] = []
        self._sources = sources
        self._message_log = MessageLog(log, "object refused")

    def effective_overrides(self) -> Overrides:
        """Return the effective BackendStates of this node."""
        return self._resolver.effective_overrides()

    def local_node(self) -> LocalNode:
        """Return the facts about this node."""
        return self._resolver.local_node()

    def owned_frontends(self) -> OwnedFrontends:
        """Return the owner of each frontend."""
        return self._resolver.owned_frontends()

    def excluded(self) -> Iterator[str]:
        """Yield the frontends that are left alone, and by what, a line each."""
        return self._resolver.excluded()

    def replace_resolver(self, resolver: Resolver, cause: str = "new options") -> None:
        """Resolve with new options from now on; `cause` is why, for the history."""
        self._next_resolver, self._new_options = resolver, cause
        self.inbox.request()

    @property
    def checked(self) -> Mapping[str, CheckedService]:
        """The Services whose backends are checked, by key."""
        return self._resolver.checked

    @property
    def panics(self) -> Collection[str]:
        """The keys of Services of which so many checks fail that they change nothing."""
        return self._resolver.panics

    def set_dead_nodes(self, nodes: frozenset[str]) -> None:
        """Give the endpoints of these nodes no new flows from now on, where their Service has other ones."""
        self._dead_nodes = nodes
        self.inbox.request()

    async def end_flows(self, addresses: Collection[L3n4Addr], targets: Sequence[Target]) -> None:
        """End the flows of backends that take no new ones: these leave the targets, as a backend that is gone, and return.

        TCP is answered with RST at its next packet, UDP selects another backend. Other flows, and what new flows find, do not
        change.
        """
        try:
            self._left_out |= frozenset(addresses)
            self.inbox.request()
            await self.settled(*targets)
        finally:
            self._left_out -= frozenset(addresses)
            self.inbox.request()
        await self.settled(*targets)

    async def captured(self) -> Captured:
        """Return the objects and the State of the next pass: the one is the result of the other, also while both change."""
        capture: asyncio.Future[Captured] = asyncio.get_running_loop().create_future()
        self._captures.append(capture)
        self.inbox.request()
        return await capture

    async def resolve_from_start(self, objects: ObjectSnapshot, state: State) -> State:
        """Return the State of these objects, resolved from nothing, for no target. Entries that rest stay, as in `state`."""
        resolver = self._resolver.without_objects(state.by_frontend)
        served = (
            backend.address for svc in state.services for backend in svc.backends
        )  # its index would stay in memory
        restored = frozenset().union(served, *[each.target.restored_backends() for each in self.runners])
        inside = frozenset().union(state.inside_rows(), *[each.target.restored_inside_rows() for each in self.runners])

        def work() -> Cooperative[State]:
            for kind in KIND_ORDER:
                every = iter(objects.of_kind(kind).items())
                while batch := [ObjectChange(kind, key, None, obj) for key, obj in islice(every, BETWEEN_YIELDS)]:
                    resolver.update(batch)
                    yield
            resolver.set_restored(InForce(restored, inside))
            return (yield from resolver.resolving()).state

        return await run_in_background(work(), time.monotonic, asyncio.sleep)

    async def settled(self, *targets: Target) -> None:
        """Return when everything reported so far is in force in these targets, or failing; without any: in all."""
        await self.inbox.settled()
        for runner in self.runners:
            if not targets or runner.target in targets:
                await runner.settled()

    async def run(self) -> None:
        """Resolve without end, and keep the targets running."""
        for source in self._sources:
            self.waiting = f"waiting for the first list of {source.name}"
            await source.synced.wait()
        self.waiting = ""
        await self.before_first_pass()
        self.inbox.request()
        pacer = Pacer()
        async with asyncio.TaskGroup() as group:
            for runner in self.runners:
                group.create_task(runner.run())
                group.create_task(runner.target.watch())
            while True:
                await self.inbox.requests()
                await pacer.pause()
                began = time.monotonic()
                await self._pass()
                pacer.passed(began)

    async def _pass(self) -> None:
        number, changes = self.inbox.take()
        captures, self._captures = self._captures, []
        objects = self.inbox.store.snapshot() if captures else ObjectSnapshot()
        dead_nodes = self._dead_nodes
        self._update_resolver(changes, dead_nodes)
        before, provenance = self._provenance, self._find_provenance()
        known, facts = self._facts, self._find_facts()
        resolution = await run_cooperatively(self._resolver.resolving(), time.monotonic)
        if self._resolver.owners_version != self._owners_version:
            self._owners_version = self._resolver.owners_version
            self.on_owners()
        if facts is not None:
            facts = _known_or_new(known, replace(facts, node_addresses=self._resolver.node_port_addresses()))
        is_other_set = self._left_out != self._left_out_before
        if is_other_set or resolution is not self._resolution or provenance is not before or facts is not known:
            generation, is_first = self.state.generation, self._resolution is None
            self._adopt(resolution)
            self.record.queued(changes, self.state.generation if self.state.generation != generation else None)
            if self.state.generation != generation:
                given = START if is_first else cause_of(changes)
                causes = (self._new_options, self._change_of_nodes(dead_nodes), given)
                self.causes.add(self.state.generation, "; ".join(filter(None, causes)))
            if is_other_set:
                self.state = State(self.state.generation + 1, self.state.services)
                self.causes.add(self.state.generation, self._end_of_flows())
            self._left_out_before, self._resolved_dead_nodes = self._left_out, dead_nodes
            self._provenance, self._facts = provenance, facts
            state = without_backends(self.state, self._left_out)
            desired = Desired(state, provenance, facts, self._resolver.excluded_frontends())
            for runner in self.runners:
                runner.set_desired(desired)
        else:
            self.record.queued(changes, None)
        self._new_options = ""
        for capture in captures:
            if not capture.done():
                capture.set_result((objects, self.state))
        self.on_objects()
        self.on_checked(self._resolver.checked)
        await self.inbox.finish(number)

    def _end_of_flows(self) -> str:
        """Return the cause of a State in which backends leave, or return, so that their flows end."""
        left, back = self._left_out - self._left_out_before, self._left_out_before - self._left_out
        words = [("flows end of", left), ("back after the end of its flows:", back)]
        return ", ".join(
            f"{word} {address.with_protocol()}" for word, found in words for address in sorted(found, key=_key)
        )

    def _change_of_nodes(self, dead_nodes: frozenset[str]) -> str:
        """Return which nodes died, or live again, since the last pass."""
        died, back = dead_nodes - self._resolved_dead_nodes, self._resolved_dead_nodes - dead_nodes
        words = [("dead nodes:", died), ("nodes that answer again:", back)]
        return cut("; ".join(f"{word} {', '.join(sorted(found))}" for word, found in words if found))

    def _update_resolver(self, changes: Sequence[ObjectChange], dead_nodes: frozenset[str]) -> None:
        """Give the resolver the changes, and what has entries from earlier."""
        restored = frozenset().union(*[runner.target.restored_backends() for runner in self.runners])
        inside_rows = frozenset().union(*[runner.target.restored_inside_rows() for runner in self.runners])
        if self._next_resolver is not None:
            restored = restored.union(self.state.backends)
            inside_rows = inside_rows.union(self.state.inside_rows())
            self._next_resolver.set_previous_owner(self._resolver.owner_of)
            self._owners_version = -1
            self._resolver, self._next_resolver = self._next_resolver, None
            self._resolver.replace(self.inbox.store.snapshot())
        else:
            self._resolver.update(changes)
        self._resolver.set_dead_nodes(dead_nodes)
        self._resolver.set_restored(InForce(restored, inside_rows))

    def _find_provenance(self) -> Provenance | None:
        """Return which sources the objects come from; None if no target needs it.

        It is needed from the first untrusted source on, while a target retains. At this point, between two awaits, the Store has
        exactly the objects that the resolver was given.
        """
        untrusted = tuple(source.name for source in self._sources if not source.trusted)
        if not (untrusted or self._provenance) or not any(runner.target.retains for runner in self.runners):
            return None
        unlisted = tuple(source.name for source in self._sources if not (source.trusted or source.listed))
        remembering = tuple(source.name for source in self._sources if source.remembered)
        store = self.inbox.store
        return Provenance(
            untrusted,
            store.services_of(unlisted),
            store.services_with_endpoints(),
            self._resolver.overrides(),
            *store.held_only_by(remembering),
        )

    def _find_facts(self) -> ObjectFacts | None:
        """Return the facts of the objects that the State lacks, if a target needs them; own addresses are added later."""
        if not any(runner.target.needs_facts for runner in self.runners):
            return None
        return ObjectFacts((), *self.inbox.store.facts())

    def _adopt(self, resolution: Resolution) -> None:
        """Number a State, over every resolver, and log new problems between the objects."""
        if resolution is self._resolution:
            return
        self._resolution = resolution
        new = resolution.state
        self.state = State(next_generation(self.state, new), new.services, new.delta)
        self.contests = resolution.contests
        if resolution.messages is not self.messages:
            self._message_log.update(resolution.messages)
            self.messages = resolution.messages
            self.on_messages(self.messages)


async def _nothing() -> None:
    pass


def _key(address: L3n4Addr) -> tuple[object, ...]:
    return address.sort_key


def _known_or_new(known: ObjectFacts | None, new: ObjectFacts) -> ObjectFacts:
    """Return the facts of before where they are the same ones. Sets are compared only where they are other objects."""
    if known is None or known.node_addresses != new.node_addresses:
        return new
    if (
        known.services_with_endpoints is new.services_with_endpoints
        and known.addresses_of_nodes is new.addresses_of_nodes
    ):
        return known
    return known if known == new else new
