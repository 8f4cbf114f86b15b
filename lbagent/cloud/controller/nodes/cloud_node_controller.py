"""Initialises Nodes that wait for a cloud controller with the provider's data; updates the addresses of all periodically.

The taint is removed last: a Node without it has its addresses, labels and providerID. Source: k8s.io/cloud-provider,
controllers/node/node_controller.go (behaviour).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.nodes import node_rules
from lbagent.cloud.controller.nodes.node_writer import NodeWriter
from lbagent.cloud.controller.nodes.provider_calls import Failures, answer_of, for_each
from lbagent.cloud.controller.service_writer import NotLeading, Outdated
from lbagent.cloud.controller.watched_objects import WatchedNode
from lbagent.cloud.controller.work_queue import WorkQueue
from lbagent.cloud.provider_api.provider_parts import InstanceMetadata, InstancesV2
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError
from lbagent.objects.records import ObjectChange

log = logging.getLogger(__name__)
COMPONENT = "cloud-node-controller"
OUTDATED_S = 0.2  # until a Node that changed in the meantime is read again
WriteEvent = Callable[[Node, str, str, bool], None]  # Node, reason, text, whether it is a warning


class CloudNodeController:
    """Initialises Nodes, and updates their addresses every `period_s` seconds."""

    def __init__(
        self,
        instances: InstancesV2,
        informers: Informers,
        writer: NodeWriter,
        queue: WorkQueue,
        write_event: WriteEvent,
        *,
        period_s: float,
        workers: int,
    ) -> None:
        self._instances, self._informers, self._writer, self._queue = instances, informers, writer, queue
        self._write_event, self._period_s, self._workers = write_event, period_s, workers
        self._not_refreshed = Failures("the addresses of a Node are unknown")

    def take(self, changes: Sequence[ObjectChange]) -> None:
        """Queue changed Nodes."""
        for change in changes:
            if isinstance(change.new, WatchedNode) and _has_work(change.new.record):
                self._queue.add(change.key)

    async def run(self) -> None:
        """Work until cancelled."""
        self._informers.follow(self.take)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._workers):
                tasks.create_task(self._work())
            while True:
                await self._look_at_all()
                await asyncio.sleep(self._period_s)

    async def _look_at_all(self) -> None:
        """Write changed addresses of initialised Nodes; retry Nodes that are not initialised."""
        nodes = [node.record for node in self._informers.nodes()]
        for node in filter(_has_work, nodes):
            self._queue.add(node.name)
        initialised = {node.name: node for node in nodes if not (node.leaves or _is_uninitialised(node))}
        await for_each(initialised, self._refresh, self._not_refreshed)

    async def _refresh(self, node: Node) -> None:
        metadata = await answer_of(self._instances.metadata(node))
        if metadata is not None:
            await self._set_addresses(node, metadata)

    # --- new Nodes ---

    async def _work(self) -> None:
        while True:
            name = await self._queue.get()
            try:
                await self._process(name)
            finally:
                self._queue.done(name)

    async def _process(self, name: str) -> None:
        node = self._informers.node(name)
        try:
            if node is not None and not node.record.leaves:
                await self._sync(node.record)
        except (Outdated, NotLeading):
            self._queue.add_after(name, OUTDATED_S)
        except Exception as error:
            least_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
            seconds = self._queue.add_rate_limited(name, least_s)
            fields = {"node": name, "error": str(error) or type(error).__name__, "again_in_s": seconds}
            log.warning("a Node was not initialised", extra=fields, exc_info=not isinstance(error, LbError))
        else:
            self._queue.forget(name)

    async def _sync(self, node: Node) -> None:
        if _is_uninitialised(node):
            await self._initialise(node)
        elif labels := node_rules.outdated_labels(node.labels):
            await self._writer.edit(node, lambda _: {"metadata": {"labels": labels}})

    async def _initialise(self, node: Node) -> None:
        metadata = await answer_of(self._instances.metadata(node))
        if metadata is None:
            log.info("the provider ignores a Node", extra={"node": node.name})
            return
        if not (metadata.provider_id or node.provider_id):
            raise LbError("the provider returned no providerID")  # it could never be set later
        await self._set_addresses(node, metadata)
        if await self._writer.edit(node, lambda raw: node_rules.initialising_patch(raw, metadata)):
            log.info("a Node is initialised", extra={"node": node.name, "provider_id": metadata.provider_id})
            self._write_event(node, "Synced", "Node synced successfully", False)

    async def _set_addresses(self, node: Node, metadata: InstanceMetadata) -> None:
        """Write the addresses of the machine if the Node's differ. Raises LbError if its kubelet was given a foreign one."""
        try:
            wanted = node_rules.wanted_addresses(node, metadata.addresses)
        except ValueError as error:
            raise LbError(str(error)) from None
        if wanted and wanted != node.addresses:
            await self._writer.edit(node, lambda raw: node_rules.addresses_patch(raw, wanted), "/status")


def _is_uninitialised(node: Node) -> bool:
    return node_rules.UNINITIALIZED in node.taints


def _has_work(node: Node) -> bool:
    return _is_uninitialised(node) or bool(node_rules.outdated_labels(node.labels))
