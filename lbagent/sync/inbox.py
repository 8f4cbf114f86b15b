"""Changes that the sources report while the loop waits or makes a pass, kept until the next pass takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from lbagent.objects.records import ObjectChange
from lbagent.objects.source import Source
from lbagent.objects.store import Store


class SourceCounts(Struct):
    """The input of one source."""

    objects: int = 0
    generation: int = 0


class Inbox:
    """The objects of all sources, and the changes that no pass has taken yet."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.counts = {source.name: SourceCounts() for source in sources}
        self.store = Store(source.name for source in sources)
        self._pending: list[ObjectChange] = []
        self._wake = asyncio.Event()
        self._requested = 0  # requests so far
        self._resolved = 0  # requests that a pass has served
        self._progress = asyncio.Condition()

    def feed(self, source: Source) -> Callable[[Sequence[ObjectChange]], None]:
        """Return the callback of a source."""

        def changed(changes: Sequence[ObjectChange]) -> None:
            counts = self.counts[source.name]
            counts.objects += sum((change.new is not None) - (change.old is not None) for change in changes)
            counts.generation += bool(changes)
            self._pending += self.store.apply(source.name, changes)
            self.request()

        return changed

    def request(self) -> None:
        """Request a pass, with or without changes."""
        self._requested += 1
        self._wake.set()

    async def requests(self) -> None:
        """Return when a pass was requested."""
        await self._wake.wait()

    def take(self) -> tuple[int, list[ObjectChange]]:
        """Return the changes since the last call, and the number for `finish` once the targets have them."""
        self._wake.clear()
        pending, self._pending = self._pending, []
        return self._requested, pending

    async def finish(self, number: int) -> None:
        """Record that the pass that took these changes is over."""
        async with self._progress:
            self._resolved = number
            self._progress.notify_all()

    async def settled(self) -> None:
        """Return when everything reported so far was given to the targets."""
        wanted = self._requested
        async with self._progress:
            await self._progress.wait_for(lambda: self._resolved >= wanted)
