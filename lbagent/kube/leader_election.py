"""Elects one of several controllers as leader, by a Lease. Source: client-go, tools/leaderelection (behaviour).

A Lease is taken over if its record has not changed for its own duration, by the clock of the reader: clocks of different nodes
are not compared. A leader that could not renew for two thirds of it stops by itself, before another one begins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from lbagent.errors import LbError
from lbagent.kube.kube_client import ApiError, KubeClient
from lbagent.kube.leases import Leases, LeaseSpec

log = logging.getLogger(__name__)
LEASE = "lbagent-cloud"
RENEW_PARTS = 2 / 3  # share of the duration after which a leader that cannot renew stops
RETRY_PARTS = 2 / 15  # share of the duration between two reads: client-go's 2 s of 15 s


class LeaderElection:
    """Campaigns for a Lease and renews it; times in seconds of `clock`."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
        lease: str = LEASE,
    ) -> None:
        self._client, self._identity, self._clock, self._lease = client, identity, clock, lease
        self._duration_s = duration_s
        self._renew_s, self._retry_s = duration_s * RENEW_PARTS, duration_s * RETRY_PARTS
        self._leases = Leases(client, namespace)
        self._observed: LeaseSpec | None = None
        self._observed_at = 0.0
        self._held_until = 0.0
        self._failure = ""
        self.is_leading = False

    @property
    def write_s(self) -> float:
        """Seconds that a request may take so that it has ended before another controller leads."""
        return self._duration_s - self._renew_s

    def may_write(self) -> bool:
        """Return whether this controller certainly leads."""
        return self.is_leading and self._clock() < self._held_until

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Campaign, work while the Lease is held, and campaign again after its loss. Ends with the work."""
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
        log.info("this controller leads", extra={"lease": self._lease, "identity": self._identity})

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Return whether the work ended, not the Lease."""
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            log.error("this controller no longer leads: the Lease could not be renewed", extra={"error": self._failure})
            return False
        finally:
            for task in (working, renewing):
                task.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)

    async def _renew(self) -> None:
        """Renew until it has failed for too long, or another controller has the Lease."""
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
            await self._client.connect()  # it takes seconds the first time, which do not count for the Lease
            began = self._clock()
            async with asyncio.timeout(self._renew_s):
                is_held = await self._acquire_or_renew(began)
        except (LbError, TimeoutError) as error:
            text = str(error) or "no answer in time"
            if text != self._failure and not (isinstance(error, ApiError) and error.status == HTTPStatus.CONFLICT):
                log.warning("the Lease cannot be read or written", extra={"lease": self._lease, "error": text})
            self._failure = text
            return False
        self._failure = ""
        if is_held:
            self._held_until = began + self._renew_s
        return is_held

    async def _acquire_or_renew(self, now: float) -> bool:
        found = await self._leases.get(self._lease, silence_s=self.write_s)
        if found is None:
            spec = LeaseSpec(lease_transitions=-1).held_by(self._identity, self._duration_s)
            await self._leases.create(self._lease, spec, silence_s=self.write_s)
            self._observe(spec, now)
            return True
        if self._observed != found.spec:
            self._observe(found.spec, now)
        if not self._is_free(found.spec, now):
            return False
        spec = found.spec.held_by(self._identity, self._duration_s)
        await self._leases.replace(found, spec, silence_s=self.write_s)
        self._observe(spec, now)
        return True

    def _is_free(self, spec: LeaseSpec, now: float) -> bool:
        if spec.holder_identity in (None, "", self._identity):
            return True
        return self._observed_at + (spec.lease_duration_seconds or 0) < now

    def _observe(self, spec: LeaseSpec, now: float) -> None:
        self._observed, self._observed_at = spec, now

    async def _release(self) -> None:
        """Release the Lease, so that another controller need not wait."""
        try:
            async with asyncio.timeout(self.write_s):
                found = await self._leases.get(self._lease, silence_s=self.write_s)
                if found and found.spec.holder_identity == self._identity:
                    await self._leases.replace(found, found.spec.given_back(), silence_s=self.write_s)
        except (LbError, TimeoutError) as error:
            log.warning(
                "the Lease was not given back; another controller waits for its end", extra={"error": str(error)}
            )
