"""The Kubernetes source alone, in this process: compares its listener with that of a new source."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lbagent.kube.kube_settings import KubeSettings, KubeTiming
from lbagent.objects.records import FIELD_OF_KIND, KubeObject, ObjectChange, ObjectSnapshot
from lbagent.sources.kube.source import KubeSource
from tests.kube_api.cluster import NODE

TIMING = KubeTiming(first_pause_s=0.1, max_pause_s=1.0, healthy_s=5.0, standing_s=0.5, first_list_s=10.0)


class Following:
    """A running source, and the objects of its listener after all changes."""

    def __init__(self, source: KubeSource) -> None:
        self.source = source
        self.known: dict[tuple[str, str], KubeObject] = {}
        self.deleted: set[str] = set()  # keys that were deleted at any time
        self.changes = 0
        self.task: asyncio.Task[None] | None = None

    def __call__(self, changes: Sequence[ObjectChange]) -> None:
        for change in changes:
            self.changes += 1
            assert self.known.get((change.kind, change.key)) == change.old
            if change.new is None:
                del self.known[change.kind, change.key]
                self.deleted.add(change.key)
            else:
                self.known[change.kind, change.key] = change.new

    @property
    def texts(self) -> str:
        return "\n".join(map(str, self.source.problems()))

    def addresses(self, service: str) -> list[str]:
        """Return the ready addresses of a Service of the namespace default."""
        slices = self.source.snapshot().slices.values()
        endpoints = [each for one in slices if one.service == service for each in one.endpoints if each.ready]
        families = {4: socket.AF_INET, 16: socket.AF_INET6}
        return sorted(socket.inet_ntop(families[len(each.address)], each.address) for each in endpoints)

    async def until(self, condition: Callable[[], Any], what: str = "", within_s: float = 60.0) -> None:
        """Wait for a condition; the source must keep running."""
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    assert self.task is None or not self.task.done(), self.task.exception()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s: {what or condition}; {self.texts}") from None

    async def converges(self, config: Path, within_s: float = 60.0) -> None:
        """Wait until the listener and the snapshot have the objects that a new agent reads."""
        fresh = await fresh_snapshot(config)
        try:
            await self.until(lambda: contents(self.source.snapshot()) == contents(fresh), "", within_s)
        except AssertionError:
            assert contents(self.source.snapshot()) == contents(fresh)
        told = {kind: {key: obj for (of, key), obj in self.known.items() if of == kind} for kind in FIELD_OF_KIND}
        assert told == contents(fresh)


def contents(snapshot: ObjectSnapshot) -> dict[str, Mapping[str, Any]]:
    return {kind: dict(snapshot.of_kind(kind)) for kind in FIELD_OF_KIND}


def settings(config: Path, **more: Any) -> KubeSettings:
    return KubeSettings(**{"kubeconfig": str(config), "node_name": NODE, "timing": TIMING} | more)


async def fresh_snapshot(config: Path) -> ObjectSnapshot:
    """Return the objects that a new agent reads now."""
    async with following(settings(config)) as fresh:
        return fresh.source.snapshot()


@asynccontextmanager
async def following(given: KubeSettings, *, synced: bool = True, resumes: bool = False) -> AsyncIterator[Following]:
    """Run a source; with `synced`, return after its first lists."""
    source = KubeSource(given)
    if resumes:
        source.resume()
    one = Following(source)
    task = one.task = asyncio.create_task(source.run(one))
    try:
        if synced:
            await one.until(source.synced.is_set, "the first lists")
        yield one
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
