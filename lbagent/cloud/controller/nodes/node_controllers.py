"""Which controllers of Nodes run: those for which the provider has a part, and which --controllers enables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from lbagent.cloud.controller.cloud_settings import CloudSettings
from lbagent.cloud.controller.controller_names import CLOUD_NODE, NODE_LIFECYCLE, NODE_ROUTE
from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.nodes import cloud_node_controller, node_lifecycle_controller, route_controller
from lbagent.cloud.controller.nodes.cloud_node_controller import CloudNodeController, WriteEvent
from lbagent.cloud.controller.nodes.node_lifecycle_controller import NodeLifecycleController
from lbagent.cloud.controller.nodes.node_writer import NodeWriter
from lbagent.cloud.controller.nodes.older_instances import instances_of
from lbagent.cloud.controller.nodes.route_controller import RouteController
from lbagent.cloud.controller.work_queue import WorkQueue
from lbagent.cloud.provider import CloudProvider
from lbagent.cloud.provider_api.provider_parts import InstancesV2, Routes
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.kube.event_writer import EventLimits, EventWriter
from lbagent.kube.kube_client import KubeClient
from lbagent.objects.object_event import ObjectEvent

log = logging.getLogger(__name__)
EVENTS = EventLimits(burst=500, refill_s=1.0, waiting=5000)
Running = Coroutine[Any, Any, None]


class NodeControllers:
    """The controllers of Nodes of one term of leading."""

    def __init__(
        self,
        settings: CloudSettings,
        client: KubeClient,
        node_name: str,
        informers: Informers,
        may_write: Callable[[], bool],
        write_s: float,
    ) -> None:
        self._settings, self._client, self._node_name = settings, client, node_name
        self._informers, self._may_write = informers, may_write
        self._writer = NodeWriter(client, informers, may_write, write_s)

    async def run(self, provider: CloudProvider) -> None:
        """Run the controllers until cancelled; Services and Nodes were listed before."""
        running: list[Running] = []
        if (instances := instances_of(provider)) is not None:
            if self._settings.runs(CLOUD_NODE):
                running += self._cloud_node(instances)
            if self._settings.runs(NODE_LIFECYCLE):
                running += self._lifecycle(instances)
        if (routes := provider.routes()) is not None and self._settings.runs(NODE_ROUTE):
            running += self._routes(routes)
        async with asyncio.TaskGroup() as tasks:
            for each in running:
                tasks.create_task(each)

    def _cloud_node(self, instances: InstancesV2) -> list[Running]:
        settings, (events, write_event) = self._settings, self._events(cloud_node_controller.COMPONENT)
        queue = WorkQueue(settings.retry_base_s, settings.retry_max_s)
        controller = CloudNodeController(
            instances,
            self._informers,
            self._writer,
            queue,
            write_event,
            period_s=settings.node_addresses_period_s,
            workers=settings.concurrent_syncs,
        )
        return [events.run(), controller.run()]

    def _lifecycle(self, instances: InstancesV2) -> list[Running]:
        events, write_event = self._events(node_lifecycle_controller.COMPONENT)
        controller = NodeLifecycleController(
            instances, self._informers, self._writer, write_event, period_s=self._settings.node_monitor_period_s
        )
        return [events.run(), controller.run()]

    def _routes(self, routes: Routes) -> list[Running]:
        settings = self._settings
        if not settings.cluster_cidrs:
            log.warning("no routes are created: --cluster-cidr is not given")
            return []
        events, write_event = self._events(route_controller.COMPONENT)
        controller = RouteController(
            routes,
            self._informers,
            self._writer,
            write_event,
            cluster=settings.cluster_name,
            cluster_cidrs=settings.cluster_cidrs,
            may_write=self._may_write,
            period_s=settings.route_period_s,
        )
        return [events.run(), controller.run()]

    def _events(self, component: str) -> tuple[EventWriter, WriteEvent]:
        writer = EventWriter(self._client, self._node_name, component=component, limits=EVENTS, counts=True)

        def write(node: Node, reason: str, text: str, warning: bool) -> None:
            writer.write(ObjectEvent("Node", node.name, reason, text, warning, node.uid))

        return writer, write
