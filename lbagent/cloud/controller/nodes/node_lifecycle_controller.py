"""Checks the machines of Nodes that are not ready: deletes a Node without a machine, taints a Node whose machine is off.

A Node is deleted when the provider returns False in two consecutive checks. An error, a time-out or another answer between
them restarts the count. Source: k8s.io/cloud-provider, controllers/nodelifecycle (behaviour; there the first False counts).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.nodes import node_rules
from lbagent.cloud.controller.nodes.node_writer import NodeWriter
from lbagent.cloud.controller.nodes.provider_calls import CALL_S, Failures, answer_of, for_each
from lbagent.cloud.controller.service_writer import NotLeading, Outdated
from lbagent.cloud.provider_api.provider_parts import InstancesV2
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.errors import LbError
from lbagent.objects.decode.decode_pod import SHUT_DOWN

log = logging.getLogger(__name__)
COMPONENT = "cloud-node-lifecycle-controller"
LOOKS = 2  # consecutive checks without the instance
WriteEvent = Callable[[Node, str, str, bool], None]


class NodeLifecycleController:
    """Checks every Node each `period_s` seconds; the provider has `call_s` for an answer."""

    def __init__(
        self,
        instances: InstancesV2,
        informers: Informers,
        writer: NodeWriter,
        write_event: WriteEvent,
        *,
        period_s: float,
        call_s: float = CALL_S,
    ) -> None:
        self._instances, self._informers, self._writer = instances, informers, writer
        self._write_event, self._period_s, self._call_s = write_event, period_s, call_s
        self._absent: dict[str, int] = {}  # uid -> consecutive checks without its instance
        self._not_known = Failures("the check of a Node that is not ready failed")

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._period_s)

    async def look(self) -> None:
        """Check every Node once."""
        nodes = {node.record.name: node.record for node in self._informers.nodes()}
        uids = {node.uid for node in nodes.values()}
        self._absent = {uid: looks for uid, looks in self._absent.items() if uid in uids}
        await for_each(nodes, self._look_at, self._not_known)

    async def _look_at(self, node: Node) -> None:
        looks = self._absent.pop(node.uid, 0)
        if node.leaves:
            return
        if node.ready:
            if SHUT_DOWN in node.taints:
                await self._writer.edit(node, lambda raw: node_rules.shut_down_patch(raw, off=False))
            return
        exists = await answer_of(self._instances.exists(node), self._call_s)
        if not isinstance(exists, bool):
            raise LbError(f"the provider returned {exists!r}")
        if not exists:
            self._absent[node.uid] = looks + 1
            if looks + 1 >= LOOKS:
                await self._delete(node, is_first=looks + 1 == LOOKS)
        elif await answer_of(self._instances.is_shut_down(node), self._call_s) and SHUT_DOWN not in node.taints:
            await self._writer.edit(node, lambda raw: node_rules.shut_down_patch(raw, off=True))
            log.info("a Node's machine is off", extra={"node": node.name})

    async def _delete(self, node: Node, *, is_first: bool) -> None:
        """Delete a Node, unless it is ready now, or changes at the same time."""
        found = self._informers.node(node.name)
        if found is None or found.record.uid != node.uid or found.record.ready:
            return
        text = f"Deleting node {node.name} because it does not exist in the cloud provider"
        if is_first:
            self._write_event(node, "DeletingNode", text, False)
        try:
            await self._writer.delete(node, self._informers.version_of_node(node.name))
        except (Outdated, NotLeading):
            raise
        except LbError as error:
            if not self._not_known.is_known(node.name, error):
                self._write_event(node, "DeletingNodeFailed", f"Failed deleting node {node.name}: {error}", True)
            raise
        log.warning("a Node was deleted: its machine does not exist", extra={"node": node.name})
