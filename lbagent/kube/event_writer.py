"""Writes Events about objects of the API: few, in the background, and best effort.

Source: events of core/v1; the limits are of the kind of client-go's (a burst, then a trickle).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.object_uid import uid_of
from lbagent.kube.resources import collection_of
from lbagent.objects.object_event import ObjectEvent

log = logging.getLogger(__name__)
BURST, REFILL_S = 25, 10.0  # burst, then one Event per so many seconds
MAX_WAITING = 100  # more are left out
MAX_TRIES, EVENT_RETRY_DELAY_S = 3, 5.0  # if the server does not answer
SILENCE_S = 10.0
MAX_TEXT = 1024  # maximum characters of a message in the API
NODE_NAMESPACE = "default"  # namespace of Events about objects without a namespace
COMPONENT = "lbagent"
BUSY_POLL_INTERVAL_S, MAX_BUSY_POLLS = (
    0.025,
    4,
)  # after each Event, while the reported work continues: 0.1 s at most
MAX_COUNTED = 20_000  # Events with a stored count
NAME_HASH_BYTES = 8


class EventLimits(Struct, frozen=True):
    """So many Events at once, then one per `refill_s` seconds; more than `waiting` are left out."""

    burst: int = BURST
    refill_s: float = REFILL_S
    waiting: int = MAX_WAITING


class _Counted(Struct):
    count: int = 1


class EventWriter:
    """Writes the Events of a queue, in order.

    With `counts`, equal messages about one object are one Event with a count, also over a restart. While `is_busy` returns true
    they are written one by one, so that the server has time for the work that they report.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        component: str = COMPONENT,
        limits: EventLimits | None = None,
        counts: bool = False,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client, self._node, self._clock, self._is_busy = client, node_name, clock, is_busy
        self._component, self._limits, self._counts = (
            component,
            limits or EventLimits(BURST, REFILL_S, MAX_WAITING),
            counts,
        )
        self._times: dict[str, int] = {}  # name of an Event -> its count
        self._waiting: deque[tuple[ObjectEvent, str]] = deque()  # with its time
        self._came = asyncio.Event()
        self._credit, self._credited = float(self._limits.burst), clock()
        self._logged: set[int] = set()  # statuses of failures that were logged
        self.left_out = 0

    def write(self, event: ObjectEvent) -> None:
        """Take an event; return at once."""
        if len(self._waiting) >= self._limits.waiting:
            if not self.left_out:
                log.warning("too many Events: the rest is left out", extra={"waiting": self._limits.waiting})
            self.left_out += 1
            return
        self._waiting.append((event, _now_text()))
        self._came.set()

    async def run(self) -> None:
        """Write until cancelled. No answer of the server ends it."""
        while True:
            await self._came.wait()
            while self._waiting:
                await asyncio.sleep(self._pause())
                await self._try(*self._waiting.popleft())
                await self._let_work_go_first()
            self._came.clear()

    async def _let_work_go_first(self) -> None:
        """Wait a moment while there is work, unless so many Events wait that some would be left out."""
        polls = MAX_BUSY_POLLS if len(self._waiting) <= self._limits.waiting / 2 else 0
        while polls and self._is_busy():
            polls -= 1
            await asyncio.sleep(BUSY_POLL_INTERVAL_S)

    def _pause(self) -> float:
        """Take credit for one event; return the seconds until there is credit."""
        now = self._clock()
        burst, refill_s = self._limits.burst, self._limits.refill_s
        self._credit = min(float(burst), self._credit + (now - self._credited) / refill_s) - 1
        self._credited = now
        return max(0.0, -self._credit * refill_s)

    async def _try(self, event: ObjectEvent, at: str) -> None:
        for _ in range(MAX_TRIES):
            try:
                await self._write(event, at)
            except ApiError as error:
                self._log_failure(error.status, error)
                if error.status < HTTPStatus.INTERNAL_SERVER_ERROR and error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    return
                await asyncio.sleep(max(EVENT_RETRY_DELAY_S, error.retry_after_s))
            except LbError as error:
                self._log_failure(0, error)
                await asyncio.sleep(EVENT_RETRY_DELAY_S)
            except Exception as error:  # noqa: BLE001 - no Event is worth a sync loop that ends
                self._log_failure(-1, error)
                return
            else:
                self._logged.clear()
                return

    def _log_failure(self, status: int, error: Exception) -> None:
        if status not in self._logged:
            self._logged.add(status)
            log.warning("an Event was not written (create events)", extra={"error": str(error)})

    async def _write(self, event: ObjectEvent, at: str) -> None:
        """Look up the object's uid, by which `kubectl describe` finds the Event, and write it. A deleted object gets none."""
        namespace, _, name = event.key.rpartition("/")
        uid = event.uid or (name if event.kind == "Node" else await self._uid(event.kind, namespace, name))
        if uid:
            path = f"/api/v1/namespaces/{namespace or NODE_NAMESPACE}/events"
            body = self._body(event, namespace, name, uid, at)
            await (self._count if self._counts else self._create)(path, body)

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        await self._client.post(path, body, silence_s=SILENCE_S)

    async def _count(self, path: str, body: dict[str, Any]) -> None:
        """Write an Event under a name that follows from its contents, or raise its count."""
        about = body["involvedObject"]
        identity = (about["uid"], body["type"], body["reason"], body["message"], self._component)
        digest = hashlib.blake2b("\0".join(identity).encode(), digest_size=NAME_HASH_BYTES).hexdigest()
        name = f"{about['name'][:200]}.{digest}"
        body["metadata"] = {"name": name, "namespace": body["metadata"]["namespace"]}
        if len(self._times) > MAX_COUNTED:
            self._times.clear()
        if name in self._times and await self._count_again(f"{path}/{name}", self._times[name], body):
            self._times[name] += 1
            return
        try:
            await self._create(path, body)
            self._times[name] = 1
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            async with self._client.get(f"{path}/{name}", {}, silence_s=SILENCE_S) as answer:
                self._times[name] = msgspec.json.decode(await answer.read(), type=_Counted).count + 1
            await self._count_again(f"{path}/{name}", self._times[name] - 1, body)

    async def _count_again(self, path: str, times: int, body: dict[str, Any]) -> bool:
        """Raise the count; return whether the Event still exists: the server deletes Events after an hour."""
        patch = {"count": times + 1, "lastTimestamp": body["lastTimestamp"]}
        try:
            await self._client.patch(path, patch, silence_s=SILENCE_S)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    async def _uid(self, kind: str, namespace: str, name: str) -> str:
        path = collection_of(kind, namespace)
        return await uid_of(self._client, path, name, silence_s=SILENCE_S) if path else ""

    def _body(self, event: ObjectEvent, namespace: str, name: str, uid: str, at: str) -> dict[str, Any]:
        about = {"apiVersion": "v1", "kind": event.kind, "name": name, "uid": uid}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name[:50]}.", "namespace": namespace or NODE_NAMESPACE},
            "involvedObject": about | ({"namespace": namespace} if namespace else {}),
            "reason": event.reason,
            "message": event.text[:MAX_TEXT],
            "type": "Warning" if event.warning else "Normal",
            "count": 1,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "source": {"component": self._component, "host": self._node},
            "reportingComponent": self._component,
            "reportingInstance": self._node,
        }


def _now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
