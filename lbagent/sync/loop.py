"""The loop: sources -> inbox -> resolve -> State, given to each target, which applies it.

No State is made before every source has reported its first full list. Each target has a task of its own (runner.py): the loop
waits for none of them. A single change is resolved at once, a burst of changes in steps between which other tasks run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from lbagent.model.cooperative import run_cooperatively
from lbagent.model.message import Message
from lbagent.model.state import State, next_generation
from lbagent.objects.message_log import MessageLog
from lbagent.objects.records import ObjectChange
from lbagent.objects.source import Source
from lbagent.resolve import Resolver
from lbagent.resolve.frontends import LocalNode
from lbagent.resolve.overrides import Overrides
from lbagent.resolve.ownership import Contest, OwnedFrontends
from lbagent.resolve.resolver import Resolution
from lbagent.sync.inbox import Inbox
from lbagent.sync.pacer import Pacer
from lbagent.sync.runner import TargetRunner
from lbagent.sync.sync_record import SyncRecord
from lbagent.sync.target_protocol import Desired, ObjectFacts, Provenance, Target

log = logging.getLogger(__name__)


class SyncLoop:
    """Owner of the objects and their Resolver. The next pass takes the changes that are reported during a pass."""

    def __init__(self, resolver: Resolver, sources: Sequence[Source], targets: Sequence[Target]) -> None:
        self.inbox = Inbox(sources)
        self.runners = [TargetRunner(target) for target in targets]
        self.state = State()  # the result of all objects, without ids; its generation never repeats
        self.messages: tuple[Message, ...] = ()  # problems between the objects
        self.contests: tuple[Contest, ...] = ()  # claims to frontends that another Service has
        self.waiting = ""  # why nothing was resolved yet
        self.on_messages: Callable[[Sequence[Message]], None] = lambda _messages: None  # called when they change
        self.on_objects: Callable[[], None] = lambda: (
            None
        )  # called after each pass, as objects or their sources may have changed
        self.on_owners: Callable[[], None] = lambda: None  # called when `owned_frontends` has changed
        self._owners_version = -1
        self._resolver = resolver
        self._next_resolver: Resolver | None = None
        self._resolution: Resolution | None = None
        self._provenance: Provenance | None = None
        self._facts: ObjectFacts | None = None
        self.record = SyncRecord()  # of the first target
        for runner in self.runners[:1]:
            runner.on_in_force = self.record.in_force
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

    def replace_resolver(self, resolver: Resolver) -> None:
        """Resolve with new options from now on (SIGHUP)."""
        self._next_resolver = resolver
        self.inbox.request()

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
        self._update_resolver(changes)
        before, provenance = self._provenance, self._find_provenance()
        known, facts = self._facts, self._find_facts()
        resolution = await run_cooperatively(self._resolver.resolving(), time.monotonic)
        if self._resolver.owners_version != self._owners_version:
            self._owners_version = self._resolver.owners_version
            self.on_owners()
        if facts is not None:
            facts = _known_or_new(known, replace(facts, node_addresses=self._resolver.node_port_addresses()))
        if resolution is not self._resolution or provenance is not before or facts is not known:
            generation = self.state.generation
            self._adopt(resolution)
            self.record.queued(changes, self.state.generation if self.state.generation != generation else None)
            self._provenance, self._facts = provenance, facts
            for runner in self.runners:
                runner.set_desired(Desired(self.state, provenance, facts))
        else:
            self.record.queued(changes, None)
        self.on_objects()
        await self.inbox.finish(number)

    def _update_resolver(self, changes: Sequence[ObjectChange]) -> None:
        """Give the resolver the changes, and the backends that have entries from earlier."""
        restored = frozenset().union(*[runner.target.restored_backends() for runner in self.runners])
        if self._next_resolver is not None:
            restored = restored.union(self.state.backends)
            self._next_resolver.set_previous_owner(self._resolver.owner_of)
            self._owners_version = -1
            self._resolver, self._next_resolver = self._next_resolver, None
            self._resolver.replace(self.inbox.store.snapshot())
        else:
            self._resolver.update(changes)
        self._resolver.set_restored_backends(restored)

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
