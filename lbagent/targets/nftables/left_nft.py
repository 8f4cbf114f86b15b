"""The table of an earlier agent while bpf takes over: the kernel keeps the connections that it translates.

The programs begin no flow until every device has them; the table serves meanwhile. Then they have what is new, as they meet each
packet first: a SYN, a datagram. The chains get only segments of connections, and datagrams of conversations, from before. The table
still follows the Services, so that connections to a backend that is gone end, and is removed when none of its own is left. It has a
chain LEFT then, so that the next agent continues. Before the end it serves once more, while bpf gets all its SNAT ports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Protocol, cast

from lbagent.config import Config
from lbagent.errors import LbError
from lbagent.sync.runner import TargetRunner
from lbagent.targets.data_plane import DataPlane, Feature
from lbagent.targets.followed_state import follow
from lbagent.targets.nftables.chains import LEFT
from lbagent.targets.nftables.map_specs import DEFAULT_TABLE
from lbagent.targets.nftables.nf_tables import NfTables
from lbagent.targets.nftables.nft_plane import NftPlane

POLL_S = 1.0
QUIET_POLLS = 2  # in which no connection is left
log = logging.getLogger(__name__)


class Successor(DataPlane, Protocol):
    """The data plane that takes over."""

    taking_over: Callable[[], str]

    def share_with_nftables(self, *, passing: bool) -> None:
        """Leave open connections, and source ports, to nftables; `passing`: what is new, too, until `begin_flows`."""

    async def begin_flows(self) -> None:
        """Take what is new; return when all frontends do."""

    async def take_all_ports(self, before: Callable[[tuple[int, int]], Awaitable[None]]) -> bool:
        """Take the operator's SNAT ports, if it has fewer; `before` lets nftables have what is new. Raises LbError."""

    async def share_nothing(self) -> None:
        """Take all: nftables is gone. Raises LbError."""


class LeftNft:
    """Owner of the table of an earlier agent, until no connection of it is left."""

    name = "nftables"

    def __init__(self, config: Config) -> None:
        self._plane = NftPlane(config, {}, frozenset[Feature]())
        self._plane.leave_to_bpf()
        self._successor: Successor
        self._ports_of_bpf: tuple[int, int] | None = None  # None: some that netfilter does not use
        self.connections = -1  # that are left; -1: not counted yet
        self.is_over = False

    @property
    def problem(self) -> str:
        """What `status` shows of it."""
        if self.is_over:
            return ""
        count = "some" if self.connections < 0 else str(self.connections)
        found = f"{count} connections of the data plane nftables are left"
        return f"bpf takes over from nftables: {found}, which it serves until they end"

    async def open(self, served: DataPlane, require: Callable[[], None]) -> None:
        """Take the lock; nothing changes. Raises Conflict while the earlier agent runs, OSError."""
        await self._plane.open(require)
        self._successor = cast("Successor", served)
        with closing(NfTables()) as kernel:
            is_left = any(row.chain == LEFT for row in kernel.rules(DEFAULT_TABLE))
        self._successor.share_with_nftables(passing=not is_left)
        self._successor.taking_over = lambda: self.problem

    def close(self) -> None:
        """Close the sockets; what is in force serves on."""
        self._plane.close()

    async def run(self) -> None:
        """Let bpf, whose programs every device has, take what is new; remove the table after the last connection."""
        served = self._successor
        await served.ready.wait()
        await served.begin_flows()
        try:
            async with asyncio.TaskGroup() as group:
                runner = await follow(self._plane, served, group)
                await self._end_of_connections()
                if await served.take_all_ports(lambda ports: self._serve_beside(ports, runner)):
                    self._plane.leave_to_bpf(self._ports_of_bpf)
                    await runner.settled()
                    await self._end_of_connections()
                raise _IsOver
        except* _IsOver:
            pass
        await asyncio.to_thread(self._plane.writer.table.remove)
        self._plane.close()
        self.is_over = True
        log.info("bpf has taken over from nftables")
        await served.share_nothing()

    async def _serve_beside(self, ports: tuple[int, int], runner: TargetRunner) -> None:
        """Serve what bpf leaves, by other source ports than these."""
        self._ports_of_bpf = ports
        self._plane.share_with_bpf(ports)
        await runner.settled()

    async def _end_of_connections(self) -> None:
        quiet = 0
        while quiet < QUIET_POLLS:
            await asyncio.sleep(POLL_S)
            try:
                found = await self._plane.count_flows()
            except OSError as error:
                raise LbError(f"connections cannot be counted: {error.strerror or error}") from error
            self.connections = sum((found.live or {}).values())
            quiet = 0 if self.connections else quiet + 1


class _IsOver(Exception):
    """No connection is left."""
