"""One of several controllers leads, by a Lease. Source: client-go, tools/leaderelection (behaviour).

A Lease is taken over when its record has not changed for its own duration, by the clock of the one who looks: clocks of
different nodes are not compared. A leader that could not renew for two thirds of it stops by itself, before another begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from lbagent.errors import LbError
from lbagent.sources.kube.kube_client import ApiError, KubeClient

log = logging.getLogger(__name__)
LEASE = "lbagent-cloud"
API = "coordination.k8s.io/v1"
RENEW_PARTS = 2 / 3  # of the duration, after which a leader that cannot renew stops
RETRY_PARTS = 2 / 15  # of the duration, between two looks: client-go's 2 s of 15 s
RELEASED_S = 1  # duration of a Lease that was given back


class _Spec(Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(Struct):
    metadata: dict[str, Any]
    spec: _Spec = msgspec.field(default_factory=_Spec)


class LeaderElection:
    """Campaigns for a Lease and renews it; times in seconds of `clock`."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._namespace, self._identity, self._clock = client, namespace, identity, clock
        self._duration_s = duration_s
        self._renew_s, self._retry_s = duration_s * RENEW_PARTS, duration_s * RETRY_PARTS
        self._path = f"/apis/{API}/namespaces/{namespace}/leases"
        self._observed: _Spec | None = None
        self._observed_at = 0.0
        self._held_until = 0.0
        self._failure = ""
        self.is_leading = False

    @property
    def write_s(self) -> float:
        """Seconds that a request may take so that it has ended before another controller leads."""
        return self._duration_s - self._renew_s

    def may_write(self) -> bool:
        """Return whether this one leads for certain."""
        return self.is_leading and self._clock() < self._held_until

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Campaign, work while the Lease is held, and campaign again when it was lost. Ends when the work does."""
        while True:
            await self._acquire()
            try:
                if await self._work_while_held(work):
                    return
            finally:
                self.is_leading = False
                if self._clock() < self._held_until:
                    await self._release()

    async def _acquire(self) -> None:
        while not await self._try_once():  # noqa: ASYNC110 - it waits for another process
            await asyncio.sleep(self._retry_s)
        self.is_leading = True
        log.info("this controller leads", extra={"lease": LEASE, "identity": self._identity})

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Return whether the work ended, rather than the Lease."""
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            log.error("this controller leads no more: the Lease could not be renewed", extra={"error": self._failure})
            return False
        finally:
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)

    async def _renew(self) -> None:
        """Renew until that has failed for too long, or another one has the Lease."""
        while self._clock() < self._held_until:
            await asyncio.sleep(self._retry_s)
            if (
                not await self._try_once()
                and self._observed
                and self._observed.holder_identity not in (self._identity, None, "")
            ):
                self._held_until = 0.0

    async def _try_once(self) -> bool:
        """Acquire or renew; return whether that worked."""
        try:
            await self._client.connect()  # it takes seconds the first time, which are none of the Lease's
            began = self._clock()
            async with asyncio.timeout(self._renew_s):
                is_held = await self._acquire_or_renew(began)
        except (LbError, msgspec.MsgspecError, TimeoutError) as error:
            text = str(error) or "no answer in time"
            if text != self._failure and not (isinstance(error, ApiError) and error.status == HTTPStatus.CONFLICT):
                log.warning("the Lease cannot be read or written", extra={"lease": LEASE, "error": text})
            self._failure = text
            return False
        self._failure = ""
        if is_held:
            self._held_until = began + self._renew_s
        return is_held

    async def _acquire_or_renew(self, now: float) -> bool:
        found = await self._get()
        if found is None:
            spec = self._own_spec(None)
            body = {"apiVersion": API, "kind": "Lease", "metadata": {"name": LEASE, "namespace": self._namespace}}
            await self._client.post(self._path, body | {"spec": msgspec.to_builtins(spec)}, silence_s=self.write_s)
            self._observe(spec, now)
            return True
        if self._observed != found.spec:
            self._observe(found.spec, now)
        if not self._is_free(found.spec, now):
            return False
        spec = self._own_spec(found.spec)
        await self._put(found, spec)
        self._observe(spec, now)
        return True

    def _is_free(self, spec: _Spec, now: float) -> bool:
        if spec.holder_identity in (None, "", self._identity):
            return True
        return self._observed_at + (spec.lease_duration_seconds or 0) < now

    def _observe(self, spec: _Spec, now: float) -> None:
        self._observed, self._observed_at = spec, now

    def _own_spec(self, before: _Spec | None) -> _Spec:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = before is not None and before.holder_identity == self._identity
        transitions = (before.lease_transitions or 0) if before else 0
        return _Spec(
            holder_identity=self._identity,
            lease_duration_seconds=max(1, round(self._duration_s)),
            acquire_time=before.acquire_time if before and is_mine else now,
            renew_time=now,
            lease_transitions=transitions + (before is not None and not is_mine),
        )

    async def _get(self) -> _Lease | None:
        try:
            async with self._client.get(f"{self._path}/{LEASE}", {}, silence_s=self.write_s) as answer:
                return msgspec.json.decode(await answer.read(), type=_Lease)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _put(self, lease: _Lease, spec: _Spec) -> None:
        body = {"apiVersion": API, "kind": "Lease", "metadata": lease.metadata, "spec": msgspec.to_builtins(spec)}
        await self._client.put(f"{self._path}/{LEASE}", body, silence_s=self.write_s)

    async def _release(self) -> None:
        """Give the Lease back, so that another controller need not wait."""
        try:
            async with asyncio.timeout(self.write_s):
                found = await self._get()
                if found and found.spec.holder_identity == self._identity:
                    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                    transitions = found.spec.lease_transitions
                    await self._put(
                        found,
                        _Spec("", RELEASED_S, acquire_time=now, renew_time=now, lease_transitions=transitions),
                    )
        except (LbError, msgspec.MsgspecError, TimeoutError) as error:
            log.warning(
                "the Lease was not given back; another controller waits for its end", extra={"error": str(error)}
            )
