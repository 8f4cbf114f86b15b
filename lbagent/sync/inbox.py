"""What others tell the reconciler while it waits or is in the middle of a pass, kept until the next one begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from lbagent.model.address import L3n4Addr
from lbagent.objects.records import ObjectChange
from lbagent.objects.source import Source
from lbagent.objects.store import Store
from lbagent.resolve import Resolver


class Held(Struct):
    """What a source has given."""

    objects: int = 0
    generation: int = 0


class Inbox:
    """Objects of all sources and what they became since the last pass began; suspicions, other options, other paths."""

    def __init__(self, sources: Sequence[Source]) -> None:
        """Start with nothing told."""
        self.held = {source.name: Held() for source in sources}
        self._store = Store(source.name for source in sources)
        self._news: list[ObjectChange] = []
        self._suspects: set[L3n4Addr] = set()
        self._next_resolver: Resolver | None = None
        self._paths_dirty = False
        self._wake = asyncio.Event()
        self._asked = 0  # requests so far
        self._done = 0  # requests that are in the maps
        self._finished = asyncio.Condition()

    def feed(self, source: Source) -> Callable[[Sequence[ObjectChange]], None]:
        """Return the callback of a source."""

        def changed(changes: Sequence[ObjectChange]) -> None:
            held = self.held[source.name]
            held.objects += sum((change.new is not None) - (change.old is not None) for change in changes)
            held.generation += bool(changes)
            self._news += self._store.apply(source.name, changes)
            self._request()

        return changed

    def paths_changed(self) -> None:
        """Say that ways to backends may have changed."""
        self._paths_dirty = True
        self._request()

    def replace_resolver(self, resolver: Resolver) -> None:
        """Resolve by other options from now on (SIGHUP)."""
        self._next_resolver = resolver
        self._request()

    def suspect(self, frontends: Iterable[L3n4Addr]) -> None:
        """Plan these again: somebody else changed their entries."""
        self._suspects.update(frontends)
        self._request()

    def _request(self) -> None:
        self._asked += 1
        self._wake.set()

    async def settled(self) -> None:
        """Return when everything told so far is in the maps (or failing)."""
        wanted = self._asked
        async with self._finished:
            await self._finished.wait_for(lambda: self._done >= wanted)

    async def _announce(self, asked: int) -> None:
        async with self._finished:
            self._done = asked
            self._finished.notify_all()
