"""Watches the Services and Nodes of the API server: keeps the newest version of each, and calls functions with changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from lbagent.cloud.controller.watched_objects import WatchedNode, WatchedService, watched
from lbagent.kube.kube_client import KubeClient
from lbagent.kube.kube_settings import KubeTiming
from lbagent.kube.object_cache import Draft, ObjectCache, metadata_of
from lbagent.kube.reflector import Reflector
from lbagent.kube.resources import NODES, Resource
from lbagent.kube.server_history import ServerHistory
from lbagent.objects.records import ObjectChange, ObjectSnapshot

SERVICES = Resource("Service", "/api/v1/services", "services")
ALL_NODES = Resource("Node", NODES, "nodes")
OnChanges = Callable[[Sequence[ObjectChange]], None]


class Informers:
    """Two reflectors. The controller's own writes are visible at once (`absorb`), not when the watch delivers them."""

    def __init__(self, client: KubeClient, timing: KubeTiming) -> None:
        self._client, self._timing = client, timing
        self._history = ServerHistory(client, timing.list_silence_s)
        self._services = self._reflector(SERVICES)
        self._nodes = self._reflector(ALL_NODES)
        self._followers: list[OnChanges] = []

    def _reflector(self, resource: Resource) -> Reflector:
        cache = ObjectCache(resource, refine=watched)
        return Reflector(
            self._client,
            resource,
            self._timing,
            cache,
            history=self._history,
            on_list=self._take_list,
            on_changes=self._publish,
        )

    def follow(self, on_changes: OnChanges) -> None:
        """Register a function that gets changes."""
        self._followers.append(on_changes)

    async def run(self) -> None:
        """Watch both until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for each in (self._services, self._nodes):
                tasks.create_task(each.run())

    async def listed(self) -> None:
        """Wait until both were listed once."""
        for each in (self._services, self._nodes):
            await each.listed.wait()

    # --- the objects ---

    def service(self, key: str) -> WatchedService | None:
        """Return a Service by `NAMESPACE/NAME`; None: it does not exist."""
        found = self._services.cache.get(key)
        return found if isinstance(found, WatchedService) else None

    def version_of(self, key: str) -> str:
        """Return the resourceVersion of a Service, '' if it does not exist."""
        return self._services.cache.version_of(key)

    def nodes(self) -> Iterator[WatchedNode]:
        """Iterate over the Nodes."""
        return (node for node in self._nodes.cache.objects.values() if isinstance(node, WatchedNode))

    def node(self, name: str) -> WatchedNode | None:
        """Return a Node; None: it does not exist."""
        found = self._nodes.cache.get(name)
        return found if isinstance(found, WatchedNode) else None

    def version_of_node(self, name: str) -> str:
        """Return the resourceVersion of a Node, '' if it does not exist."""
        return self._nodes.cache.version_of(name)

    def snapshot(self) -> ObjectSnapshot:
        """Return every object."""
        return ObjectSnapshot(services=self._services.cache.objects, nodes=self._nodes.cache.objects)  # type: ignore[arg-type]

    # --- changes ---

    def absorb(self, raw: bytes) -> None:
        """Store a Service from the server's answer to a write."""
        change = self._services.cache.put(raw, metadata_of(raw))
        if change is not None:
            self._publish([change])

    def absorb_node(self, raw: bytes) -> None:
        """Store a Node from the server's answer to a write."""
        change = self._nodes.cache.put(raw, metadata_of(raw))
        if change is not None:
            self._publish([change])

    def _take_list(self, reflector: Reflector, draft: Draft) -> None:
        self._publish(reflector.cache.accept(draft))

    def _publish(self, changes: Sequence[ObjectChange]) -> None:
        if changes:
            for each in self._followers:
                each(changes)
