"""Creates and removes the routes to the pods of Nodes, and sets each Node's condition NetworkUnavailable by its own route.

If the provider cannot list its routes, or the server has no Node, nothing is changed. Source: k8s.io/cloud-provider,
controllers/route/route_controller.go (behaviour); KEP-5237 (a change of Nodes is handled sooner).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from lbagent.cloud.controller.cluster_cidrs import Network
from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.nodes.node_writer import NodeWriter
from lbagent.cloud.controller.nodes.provider_calls import Failures, answer_of, for_each
from lbagent.cloud.controller.nodes.route_rules import RoutePlan, plan_routes
from lbagent.cloud.controller.watched_objects import WatchedNode
from lbagent.cloud.provider_api.provider_parts import Route, Routes
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.objects.records import ObjectChange

log = logging.getLogger(__name__)
COMPONENT = "route_controller"
CHANGE_DEBOUNCE_S = 0.5  # Nodes change in bursts
CREATED = ("False", "RouteCreated")
NOT_CREATED = ("True", "NoRouteCreated")
MESSAGES = {
    CREATED: "RouteController created a route",
    NOT_CREATED: "RouteController failed to create a route",
}
WriteEvent = Callable[[Node, str, str, bool], None]


class RouteController:
    """Matches the routes of a cluster to its Nodes, every `period_s` seconds and after changes of Nodes."""

    def __init__(
        self,
        routes: Routes,
        informers: Informers,
        writer: NodeWriter,
        write_event: WriteEvent,
        *,
        cluster: str,
        cluster_cidrs: Sequence[Network],
        may_write: Callable[[], bool],
        period_s: float,
    ) -> None:
        self._routes, self._informers, self._writer, self._write_event = routes, informers, writer, write_event
        self._cluster, self._cluster_cidrs, self._period_s = cluster, cluster_cidrs, period_s
        self._may_write = may_write
        self._changed = asyncio.Event()
        self._not_listed = Failures("the routes cannot be listed")
        self._not_deleted, self._not_made = Failures("a route was not deleted"), Failures("a route was not created")
        self._not_told = Failures("a Node's condition was not written")

    async def run(self) -> None:
        """Work until cancelled."""
        self._informers.follow(self.take)
        while True:
            self._changed.clear()
            try:
                await self.sync()
            except Exception as error:  # noqa: BLE001 - a provider may raise anything
                self._not_listed.add(self._cluster, error)
            else:
                self._not_listed.forget(self._cluster)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._changed.wait()
                    await asyncio.sleep(CHANGE_DEBOUNCE_S)

    def take(self, changes: Sequence[ObjectChange]) -> None:
        """Queue a check after changes of Nodes."""
        if any(change.kind == "Node" and _counts(change) for change in changes):
            self._changed.set()

    async def sync(self) -> None:
        """Check all routes once."""
        routes = await answer_of(self._routes.list(self._cluster))
        nodes = [node.record for node in self._informers.nodes()]
        if not nodes or not self._may_write():
            return
        plan = plan_routes(nodes, routes, self._cluster_cidrs)
        await for_each({_name(route): route for route in plan.deleted}, self._delete, self._not_deleted)
        failed = await self._create(plan)
        told = {node.name: node for node in plan.told}
        await for_each(told, lambda node: self._write_condition(node, failed), self._not_told)

    async def _delete(self, route: Route) -> None:
        await answer_of(self._routes.delete(self._cluster, route))
        log.info("a route was deleted", extra={"destination": route.destination, "node": route.target_node})

    async def _create(self, plan: RoutePlan) -> set[str]:
        """Create the missing routes; return the names of the Nodes that lack one."""
        failed: set[str] = set()

        async def one(pair: tuple[Node, Route]) -> None:
            node, route = pair
            try:
                await answer_of(self._routes.create(self._cluster, node.uid, route))
            except Exception as error:
                failed.add(node.name)
                if not self._not_made.is_known(_name(route), error):
                    text = f"Could not create route {node.uid} {route.destination} for node {node.name}: {error}"
                    self._write_event(node, "FailedToCreateRoute", text, True)
                raise
            log.info("a route was created", extra={"destination": route.destination, "node": node.name})

        await for_each({_name(pair[1]): pair for pair in plan.created}, one, self._not_made)
        return failed

    async def _write_condition(self, node: Node, failed: set[str]) -> None:
        """Write whether a Node has its routes, if its condition differs."""
        wanted = CREATED if node.pod_cidrs and node.name not in failed else NOT_CREATED
        found = self._informers.node(node.name)
        if found is not None and found.record.uid == node.uid and found.network != wanted:
            status, reason = wanted
            await self._writer.set_network_condition(node, status=status, reason=reason, message=MESSAGES[wanted])


def _name(route: Route) -> str:
    """Return the name of a route in messages; a blackhole to the same destination is a different route."""
    return f"{route.destination} of {route.target_node}" + (" (blackhole)" if route.blackhole else "")


def _counts(change: ObjectChange) -> bool:
    """Return whether a change of a Node may change routes."""
    old, new = change.old, change.new
    if not isinstance(old, WatchedNode) or not isinstance(new, WatchedNode):
        return True
    was, now = old.record, new.record
    return (was.uid, was.pod_cidrs, was.addresses) != (now.uid, now.pod_cidrs, now.addresses)
