"""Syncs the balancers of Services: ensure, update of nodes, cleanup.

One worker at a time handles a Service, changes of nodes included: so a call with old nodes never comes after one with new ones.
Source: k8s.io/cloud-provider, controllers/service/controller.go (behaviour).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from lbagent.cloud.controller.controller_metrics import ControllerMetrics
from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.service_writer import NotLeading, Outdated, ServiceWriter
from lbagent.cloud.controller.watched_objects import WatchedNode, WatchedService
from lbagent.cloud.controller.work_queue import WorkQueue
from lbagent.cloud.planned_balancer import Action
from lbagent.cloud.provider import ImplementedElsewhere, LoadBalancer, Refusal, RetryAfter
from lbagent.cloud.provider_api.provider_records import LoadBalancerStatus, Node, Service
from lbagent.cloud.provider_api.provider_rules import balanced_nodes, checked_source_ranges, needs_update, node_included
from lbagent.cloud.service_rules import action_of
from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError
from lbagent.objects.records import ObjectChange

log = logging.getLogger(__name__)
NAMED_NODES = 20  # in a message
OUTDATED_S = 0.2  # until a Service that changed in the meantime is synced again
REPAIR_S = 1.0  # until a status that another program emptied is written again
WriteEvent = Callable[[Service, str, str, bool], None]  # Service, reason, text, whether it is a warning


class ServiceController:
    """The controller of one provider's balancers."""

    def __init__(
        self,
        balancers: LoadBalancer,
        informers: Informers,
        writer: ServiceWriter,
        queue: WorkQueue,
        metrics: ControllerMetrics,
        *,
        write_event: WriteEvent,
        cluster: str = "kubernetes",
        lb_class: str = "",
    ) -> None:
        self._balancers, self._informers, self._writer, self._queue = balancers, informers, writer, queue
        self._metrics, self._write_event, self._cluster, self._lb_class = metrics, write_event, cluster, lb_class
        self._known: dict[str, Service] = {}  # as they were synced last
        self._dirty: set[str] = set()  # to ensure or to clean up; other keys of the queue need an update of their nodes
        self._synced_nodes: dict[str, frozenset[tuple[str, str]]] = {}  # (name, providerID) in the provider's last call

    # --- the queue ---

    def take(self, changes: Sequence[ObjectChange]) -> None:
        """Queue changed Services, and all of them after a change of Nodes."""
        if any(change.kind == "Node" and _counts(change) for change in changes):
            self._metrics.begin_node_sync(set(self._synced_nodes))
            for key in self._synced_nodes:
                self._queue.add(key)
        for change in changes:
            if change.kind == "Service":
                self._take_service(change)

    def sync(self, key: str) -> None:
        """Queue a Service for a sync."""
        self._dirty.add(key)
        self._queue.add(key)

    def _take_service(self, change: ObjectChange) -> None:
        new, known = change.new, self._known.get(change.key)
        if not isinstance(new, WatchedService):
            if known is not None:
                self.sync(change.key)
            return
        if known is None:
            if self._wants(new) or self._needs_cleanup(new):
                self.sync(change.key)
        elif (
            needs_update(known, new.record)
            or self._needs_cleanup(new)
            or self._wants(new) != _was_wanted(known, self._lb_class)
        ):
            self.sync(change.key)
        elif known.status.ingress and not new.record.status.ingress and self._wants(new):
            self._dirty.add(change.key)
            self._queue.add_after(change.key, REPAIR_S)

    def _wants(self, service: WatchedService) -> bool:
        return action_of(service, self._lb_class)[0] in (Action.ENSURE, Action.REFUSE)

    def _needs_cleanup(self, service: WatchedService) -> bool:
        return action_of(service, self._lb_class)[0] is Action.DELETE

    # --- workers ---

    async def run(self, workers: int) -> None:
        """Work on the queue until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._process(key)
            finally:
                self._queue.done(key)

    async def _process(self, key: str) -> None:
        is_dirty, is_done = key in self._dirty, True
        self._dirty.discard(key)
        service = self._informers.service(key)
        try:
            if is_dirty:
                await self._sync(key, service)
            elif service is not None:
                is_done = await self._sync_nodes(key, service)
        except (Outdated, NotLeading):  # a Lease that is renewed late is held again; a lost one ends the term
            self._dirty.add(key)
            self._queue.add_after(key, OUTDATED_S)
        except Exception as error:  # noqa: BLE001 - a provider's defect ends no other Service's sync
            self._fail(key, service, error)
        else:
            if is_done:
                self._queue.forget(key)

    def _fail(self, key: str, service: WatchedService | None, error: Exception) -> None:
        """Report a failure, and queue a retry."""
        self._dirty.add(key)
        text = str(error) or type(error).__name__
        told = service.record if service else self._known.get(key)
        if told and service:
            self._write_event(told, "SyncLoadBalancerFailed", f"Error syncing load balancer: {text}", True)
        elif told:
            self._write_event(told, "DeleteLoadBalancerFailed", f"Error deleting load balancer: {text}", True)
        if isinstance(error, RetryAfter):
            seconds = error.seconds
            self._queue.add_after(key, seconds)
        else:
            seconds = self._queue.add_rate_limited(key, error.retry_after_s if isinstance(error, ApiError) else 0.0)
        trace = None if isinstance(error, LbError) else error
        fields = {"service": key, "error": text, "again_in_s": seconds}
        log.warning("a load balancer was not synced", extra=fields, exc_info=trace)

    # --- one Service ---

    async def _sync(self, key: str, service: WatchedService | None) -> None:
        self._metrics.syncs += 1
        known = self._known.get(key)
        if known is not None and (service is None or service.record.uid != known.uid):
            await self._delete_gone(key, known)
        if service is None:
            return
        if self._wants(service):
            await self._ensure(key, service, known)
        elif self._needs_cleanup(service) or key in self._known:
            await self._clean_up(key, service)

    async def _delete_gone(self, key: str, known: Service) -> None:
        """Remove the balancer of a deleted Service that had no finalizer."""
        self._write_event(known, "DeletingLoadBalancer", "Deleting load balancer", False)
        await self._ensure_deleted(known)
        self._write_event(known, "DeletedLoadBalancer", "Deleted load balancer", False)
        self._forget(key)

    async def _ensure_deleted(self, service: Service) -> None:
        try:
            await self._balancers.ensure_deleted(self._cluster, service)
        except ImplementedElsewhere:
            log.debug("the balancer is another program's", extra={"service": service.key})

    async def _clean_up(self, key: str, service: WatchedService) -> None:
        """Remove the balancer, then finalizer and status."""
        record = self._known[key] = service.record
        if await self._balancers.get(self._cluster, record) is not None:
            self._write_event(record, "DeletingLoadBalancer", "Deleting load balancer", False)
            await self._ensure_deleted(record)
        await self._writer.finish(service, self._balancers.owned_annotations)
        self._write_event(record, "DeletedLoadBalancer", "Deleted load balancer", False)
        self._forget(key)

    def _forget(self, key: str) -> None:
        self._known.pop(key, None)
        self._synced_nodes.pop(key, None)
        self._metrics.reached(key)

    async def _ensure(self, key: str, service: WatchedService, known: Service | None) -> None:
        """Finalizer, provider, status: in this order, so that nothing is created without a finalizer."""
        record = self._known[key] = service.record
        is_adopted = known is None and service.finalizer and bool(record.status.ingress)
        if not is_adopted:
            self._write_event(record, "EnsuringLoadBalancer", "Ensuring load balancer", False)
        if not service.finalizer:
            if not await self._writer.add_finalizer(service):
                return
            service = self._informers.service(key) or service
        nodes = self._node_records()
        self._synced_nodes[key] = _identities(nodes)
        if not nodes:
            self._write_event(record, "UnAvailableLoadBalancer", NO_NODES, True)
        if problems := checked_source_ranges(record)[1]:
            self._write_event(record, "SourceRangesRefused", f"{'; '.join(problems)}: it admits no client", True)
        try:
            status = await self._balancers.ensure(self._cluster, record, nodes)
        except ImplementedElsewhere:
            return
        except Refusal as refusal:
            self._write_event(record, refusal.reason, str(refusal), True)
            if refusal.status is not None:
                await self._write_status(key, service, refusal.status)
            return
        finally:
            self._metrics.reached(key)
        if not isinstance(status, LoadBalancerStatus):
            raise LbError("service status returned by EnsureLoadBalancer is nil")
        if await self._write_status(key, service, status) or not is_adopted:
            self._write_event(record, "EnsuredLoadBalancer", "Ensured load balancer", False)

    async def _write_status(self, key: str, service: WatchedService, status: LoadBalancerStatus) -> bool:
        """Write a status; return whether it differs from the previous one."""
        record = service.record
        notes = {**record.annotations, **status.annotations}
        self._known[key] = replace(
            record, annotations=notes, status=status
        )  # so that its own write does not count as a change
        return await self._writer.set_status(service, status, self._balancers.owned_annotations)

    # --- nodes ---

    def _node_records(self) -> list[Node]:
        return balanced_nodes(node.record for node in self._informers.nodes())

    async def _sync_nodes(self, key: str, service: WatchedService) -> bool:
        """Pass the nodes to the provider if they changed; return whether it has the current ones."""
        nodes = self._node_records()
        identities = _identities(nodes)
        if key not in self._synced_nodes or identities == self._synced_nodes[key] or not self._wants(service):
            self._metrics.reached(key)
            return True
        self._synced_nodes[key] = identities
        began = time.monotonic()
        try:
            await self._balancers.update(self._cluster, service.record, nodes)
        except ImplementedElsewhere:
            return True
        except Refusal as refusal:
            self._write_event(service.record, refusal.reason, str(refusal), True)
            return True
        except Exception as error:  # noqa: BLE001 - whatever a provider raises
            return await self._fail_nodes(key, service, nodes, error)
        finally:
            self._metrics.host_updates.observe(time.monotonic() - began)
            self._metrics.reached(key)
        if nodes:
            self._write_event(service.record, "UpdatedLoadBalancer", "Updated load balancer with new hosts", False)
        else:
            self._write_event(service.record, "UnAvailableLoadBalancer", NO_NODES, True)
        return True

    async def _fail_nodes(self, key: str, service: WatchedService, nodes: Sequence[Node], error: Exception) -> bool:
        """Report that the provider failed to update the nodes, and queue a sync; without a balancer it is not a failure."""
        if await self._balancers.get(self._cluster, service.record) is None:
            return True
        self._metrics.node_sync_errors += 1
        names = [node.name for node in nodes[:NAMED_NODES]]
        names += [f"<{len(nodes) - NAMED_NODES} more>"] if len(nodes) > NAMED_NODES else []
        text = f"Error updating load balancer with new hosts [{' '.join(names)}]: {error}"
        self._write_event(service.record, "UpdateLoadBalancerFailed", text, True)
        self._dirty.add(key)
        if isinstance(error, RetryAfter):
            self._queue.add_after(key, error.seconds)
        else:
            self._queue.add_rate_limited(key)
        return False


NO_NODES = "There are no available nodes for LoadBalancer"


def _identities(nodes: Sequence[Node]) -> frozenset[tuple[str, str]]:
    return frozenset((node.name, node.provider_id) for node in nodes)


def _counts(change: ObjectChange) -> bool:
    """Return whether a change of a Node may change the nodes of balancers."""
    old, new = change.old, change.new
    if not isinstance(old, WatchedNode) or not isinstance(new, WatchedNode):
        return True
    return node_included(old.record) != node_included(new.record) or old.record.provider_id != new.record.provider_id


def _was_wanted(known: Service, lb_class: str) -> bool:
    return known.type == "LoadBalancer" and known.load_balancer_class == lb_class
