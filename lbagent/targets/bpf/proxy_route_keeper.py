"""Keeps the rule and the route by which packets for L7 proxies are delivered to this node, while a frontend has a proxy.

They are made before a frontend in the maps names a proxy, and again after another program removed them. They go when no frontend
has one, and with `cleanup`: what is pinned gives packets to proxies without an agent, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Protocol

from lbagent.errors import KernelError
from lbagent.maps.layout import L7_MARK
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.net import proxy_route
from lbagent.targets.bpf.steps import FrontendChange

log = logging.getLogger(__name__)
REPAIR_INTERVAL_S = 10.0  # while a frontend has a proxy; a change of the node's routes or rules is another occasion
RETRY_DELAY_S = 1.0


class RouteOfMark(Protocol):
    """What the kernel has of it."""

    async def add(self, families: Collection[Family]) -> bool:
        """Make what lacks; return whether anything did. Raises KernelError."""

    async def remove(self, families: Collection[Family]) -> bool:
        """Remove what is there; return whether anything was. Raises KernelError."""


class ProxyRoute:
    """The kernel's, of the mark that the programs write."""

    async def add(self, families: Collection[Family]) -> bool:
        """See RouteOfMark."""
        return await proxy_route.add(L7_MARK, families)

    async def remove(self, families: Collection[Family]) -> bool:
        """See RouteOfMark."""
        return await proxy_route.remove(L7_MARK, families)


class ProxyRouteKeeper:
    """Owner of rule and route. `problem`: a sentence where they could not be made; '' else."""

    route: RouteOfMark | None = None  # None: nothing is made

    def __init__(self) -> None:
        self._frontends: set[L3n4Addr] = set()  # with a proxy
        self.problem = ""
        self._wake = asyncio.Event()

    @property
    def families(self) -> list[Family]:
        """The families of the frontends with a proxy."""
        found = {frontend.family for frontend in self._frontends}
        return [family for family in Family if family in found]

    async def prepare(self, changes: Sequence[FrontendChange]) -> None:
        """Make what the frontends of these changes need, before they are written."""
        before = self.families
        for change in changes:
            svc = change.svc
            if svc is not None and svc.flags.is_l7lb() and svc.l7_lb_proxy_port:
                self._frontends.add(change.frontend)
            else:
                self._frontends.discard(change.frontend)
        after = self.families
        if after != before:
            self._wake.set()
            if set(after) - set(before):
                await self._add()

    def network_changed(self) -> None:
        """Look again: what was made may be gone."""
        if self._frontends:
            self._wake.set()

    async def run(self, ready: asyncio.Event) -> None:
        """Repair without end, and remove what no frontend needs, once all frontends are known (`ready`)."""
        await ready.wait()
        while True:
            self._wake.clear()
            await self._remove()
            if self._frontends and await self._add():
                log.warning("the rule or the route of L7 proxies was missing, and was made again")
            pause_s = RETRY_DELAY_S if self.problem else REPAIR_INTERVAL_S if self._frontends else None
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _add(self) -> bool:
        if self.route is None:
            return False
        try:
            made = await self.route.add(self.families)
        except KernelError as error:
            if not self.problem:
                log.error("packets do not reach L7 proxies", extra={"error": str(error)})
            self.problem = f"packets do not reach L7 proxies: {error}"
            return False
        self.problem = ""
        return made

    async def _remove(self) -> None:
        needed = self.families
        if self.route is None:
            return
        with suppress(KernelError):  # one that is left routes no packet, as no program writes its mark
            await self.route.remove([family for family in Family if family not in needed])
        if not needed:
            self.problem = ""
