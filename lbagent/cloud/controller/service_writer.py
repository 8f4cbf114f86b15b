"""Writes the finalizer and the status of a Service, and removes them. Every request may be sent twice.

All writes go to the subresource `status`, so that the right to change Services is not needed. A patch names the uid, and for a
status also the version: the server refuses a patch for another Service, or for an earlier version of it (409).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.watched_objects import WatchedService
from lbagent.cloud.provider_api.provider_records import Ingress, IngressPort, LoadBalancerStatus, same_ingress
from lbagent.errors import LbError
from lbagent.kube.kube_client import MERGE_PATCH, STRATEGIC_PATCH, ApiError, KubeClient, ServerUnreachable
from lbagent.kube.object_cache import metadata_of
from lbagent.objects.decode.decode_balancer import CLEANUP

T = TypeVar("T")
TRIES = 4  # attempts of a request that fails because of the server
FIRST_PAUSE_S = 0.1  # before the second one; it doubles
NOT_AS_IT_WAS = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)  # the latter is returned for another uid
MAX_PAUSE_S = 5.0  # the longest Retry-After to wait for here; a longer one goes to the queue


class NotLeading(LbError):
    """Another controller may lead now."""


class Outdated(LbError):
    """The Service changed since the patch was computed; it is synced again."""


class ServiceWriter:
    """Patches Services; `may_write` is called before each request."""

    def __init__(
        self, client: KubeClient, informers: Informers, may_write: Callable[[], bool], silence_s: float
    ) -> None:
        self._client, self._informers, self._may_write, self._silence_s = client, informers, may_write, silence_s
        self.patches = 0

    async def add_finalizer(self, service: WatchedService) -> bool:
        """Add the finalizer; return whether the Service still exists."""
        meta = {"uid": service.record.uid, "finalizers": [CLEANUP]}
        return await self._patch(service, {"metadata": meta}, STRATEGIC_PATCH)

    async def finish(self, service: WatchedService, owned: tuple[str, ...]) -> None:
        """Remove the finalizer, the status and these annotations, in one request."""
        meta: dict[str, Any] = {"uid": service.record.uid}
        if service.finalizer:
            meta["$deleteFromPrimitiveList/finalizers"] = [CLEANUP]
        if notes := {key: None for key in owned if key in service.record.annotations}:
            meta["annotations"] = notes
        body: dict[str, Any] = {"metadata": meta}
        if service.record.status.ingress:
            body["status"] = {"loadBalancer": None}
        if len(meta) > 1 or len(body) > 1:
            await self._patch(service, body, STRATEGIC_PATCH)

    async def set_status(self, service: WatchedService, status: LoadBalancerStatus, owned: tuple[str, ...]) -> bool:
        """Write a status and its annotations if they differ from the present ones; return whether they did."""
        notes = _other_annotations(service.record.annotations, status.annotations, owned)
        body: dict[str, Any] = {}
        if not same_ingress(service.record.status, status):
            entries = [_ingress(each) for each in status.ingress]
            body["status"] = {"loadBalancer": {"ingress": entries} if entries else None}
        if not body and not notes:
            return False
        version = self._informers.version_of(service.key)
        meta: dict[str, Any] = {"uid": service.record.uid, "resourceVersion": version}
        body["metadata"] = meta | ({"annotations": notes} if notes else {})
        await self._patch(service, body, MERGE_PATCH)
        return True

    async def _patch(self, service: WatchedService, body: dict[str, Any], kind: str) -> bool:
        """Send a patch until the server has answered; return whether the Service still exists."""
        path = f"/api/v1/namespaces/{service.namespace}/services/{service.name}"

        async def send() -> bytes:
            return await self._client.patch(f"{path}/status", body, kind=kind, silence_s=self._silence_s)

        async def refused(error: ApiError, is_last: bool) -> None:
            if error.status in NOT_AS_IT_WAS and (is_last or not await self._refresh(path, service, body)):
                raise Outdated(str(error)) from None

        try:
            answer = await until_answered(send, self._may_write, refused)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        self.patches += 1
        self._informers.absorb(answer)
        return True

    async def _refresh(self, path: str, service: WatchedService, body: dict[str, Any]) -> bool:
        """Read a Service again after a refused patch; return whether it is still the patch's Service."""
        try:
            async with self._client.get(path, {}, silence_s=self._silence_s) as answer:
                raw = await answer.read()
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        self._informers.absorb(raw)
        now = self._informers.service(service.key)
        if now is None or _identity(now) != _identity(service):
            return False
        if "resourceVersion" in body["metadata"]:
            body["metadata"]["resourceVersion"] = metadata_of(raw).resourceVersion
            return same_ingress(now.record.status, service.record.status)
        return True


def _identity(service: WatchedService) -> tuple[str, str, bool]:
    return service.record.uid, service.record.type, service.deleting


def check_leading(may_write: Callable[[], bool]) -> None:
    """Raise NotLeading if this controller may not write."""
    if not may_write():
        raise NotLeading("another controller may lead now")


async def _nothing(_error: ApiError, _is_last: bool) -> None:
    pass


async def until_answered(
    send: Callable[[], Awaitable[T]],
    may_write: Callable[[], bool],
    refused: Callable[[ApiError, bool], Awaitable[None]] = _nothing,
) -> T:
    """Send a request until the server has answered: retry after a conflict, a failure of the server, or no answer.

    `refused` is called with each error and whether the attempt was the last one; it raises if a retry has no use. Raises
    NotLeading, and the error of the last attempt.
    """
    pause_s = FIRST_PAUSE_S
    for is_last in (*(False,) * (TRIES - 1), True):
        check_leading(may_write)
        try:
            return await send()
        except ApiError as error:
            await refused(error, is_last)
            if is_last or not (error.status == HTTPStatus.CONFLICT or _may_pass(error)):
                raise
            pause_s = max(pause_s, error.retry_after_s)
        except ServerUnreachable:
            if is_last:
                raise
        await asyncio.sleep(pause_s)
        pause_s *= 2
    raise AssertionError("unreachable")


def _may_pass(error: ApiError) -> bool:
    """Return whether a failure is the server's, and may be temporary."""
    is_busy = error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return is_busy and error.retry_after_s <= MAX_PAUSE_S


def _other_annotations(
    now: Mapping[str, str], wanted: Mapping[str, str], owned: tuple[str, ...]
) -> dict[str, str | None]:
    """Return the annotations to change; None: remove."""
    found: dict[str, str | None] = {key: text for key, text in wanted.items() if now.get(key) != text}
    return found | {key: None for key in owned if key in now and key not in wanted}


def _ingress(each: Ingress) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if each.ip:
        entry["ip"] = each.ip
    if each.hostname:
        entry["hostname"] = each.hostname
    if each.ip_mode:
        entry["ipMode"] = each.ip_mode
    if each.ports:
        entry["ports"] = [_port(port) for port in each.ports]
    return entry


def _port(port: IngressPort) -> dict[str, Any]:
    return {"port": port.port, "protocol": port.protocol} | ({"error": port.error} if port.error else {})
