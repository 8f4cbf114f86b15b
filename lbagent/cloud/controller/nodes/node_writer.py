"""Writes and deletes Nodes for the controllers. A write is for one uid, and mostly for one version.

Lists without a key (taints, addresses) are written in full, so the Node is read again before; the server refuses another version
(409).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec

from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.service_writer import Outdated, check_leading, until_answered
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.kube.kube_client import STRATEGIC_PATCH, ApiError, KubeClient, ServerUnreachable
from lbagent.kube.object_cache import UnreadableAnswer
from lbagent.kube.resources import NODES

T = TypeVar("T")
Obj = dict[str, Any]
NETWORK_UNAVAILABLE = "NetworkUnavailable"


class NodeWriter:
    """Writes Nodes; `may_write` is called before each write."""

    def __init__(
        self, client: KubeClient, informers: Informers, may_write: Callable[[], bool], silence_s: float
    ) -> None:
        self._client, self._informers, self._may_write, self._silence_s = client, informers, may_write, silence_s

    async def edit(self, node: Node, change: Callable[[Obj], Obj | None], part: str = "") -> bool:
        """Apply a patch that is computed from the present Node (None: nothing to do); return whether one was written.

        A write that the server did without an answer counts. `part` is `/status` or ''. Raises Outdated, NotLeading, and the
        client's errors.
        """
        is_unknown = False  # whether an earlier attempt was applied

        async def once() -> bool:
            nonlocal is_unknown
            raw = await self._read(node)
            body = change(raw)
            if body is None:
                return is_unknown
            identity = {"uid": node.uid, "resourceVersion": raw["metadata"]["resourceVersion"]}
            body = body | {"metadata": body.get("metadata", {}) | identity}
            check_leading(self._may_write)
            try:
                answer = await self._client.patch(f"{NODES}/{node.name}{part}", body, silence_s=self._silence_s)
            except (ApiError, ServerUnreachable) as error:
                is_unknown = not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                raise
            self._informers.absorb_node(answer)
            return True

        return await self._until_answered(once)

    async def set_network_condition(self, node: Node, *, status: str, reason: str, message: str) -> None:
        """Write the condition NetworkUnavailable; the others stay. Raises what `edit` does."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": NETWORK_UNAVAILABLE, "status": status, "reason": reason, "message": message}
        times = {"lastTransitionTime": now, "lastHeartbeatTime": now}
        body = {"metadata": {"uid": node.uid}, "status": {"conditions": [condition | times]}}

        async def once() -> None:
            path = f"{NODES}/{node.name}/status"
            answer = await self._client.patch(path, body, kind=STRATEGIC_PATCH, silence_s=self._silence_s)
            self._informers.absorb_node(answer)

        await self._until_answered(once)

    async def delete(self, node: Node, version: str) -> None:
        """Delete a Node if it has this version. Raises what `edit` does."""
        preconditions = {"uid": node.uid, "resourceVersion": version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}

        async def once() -> None:
            try:
                await self._client.delete(f"{NODES}/{node.name}", silence_s=self._silence_s, options=options)
            except ApiError as error:
                if error.status == HTTPStatus.CONFLICT:
                    raise Outdated(str(error)) from None
                raise

        await self._until_answered(once)

    async def _read(self, node: Node) -> Obj:
        async with self._client.get(f"{NODES}/{node.name}", {}, silence_s=self._silence_s) as answer:
            data = await answer.read()
        try:
            raw: Obj = msgspec.json.decode(data)
            uid = raw["metadata"]["uid"]
        except (*DECODING_ERRORS, KeyError, TypeError) as error:
            raise UnreadableAnswer(f"Node {node.name} cannot be read: {decoding_problem(error)}") from None
        if uid != node.uid:
            raise Outdated(f"Node {node.name} was replaced by another one")
        return raw

    async def _until_answered(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request until the server has answered. Raises Outdated for a deleted Node."""
        try:
            return await until_answered(request, self._may_write)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise Outdated(str(error)) from None
            raise
