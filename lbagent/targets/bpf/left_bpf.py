"""The data plane of an earlier agent while nftables takes over, or kube-proxy does again: its programs begin no flow.

They go on with the flows that they have. Each frontend gets the flag of an L7 proxy: a packet of no flow then passes to the stack,
where the chains of nftables meet it. All
else of bpf runs as ever: paths follow the network, flows of a backend that is gone end, the sweeper frees what has expired. Maps,
programs and devices go when no flow is left. What is pinned has all of this, so that an agent that starts again continues.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol, cast

from msgspec.structs import replace

from lbagent.bpf.load import generation
from lbagent.config import Config
from lbagent.maps import pins
from lbagent.targets.bpf.bpf_plane import BpfDataPlane
from lbagent.targets.bpf.bpf_removal import remove_held
from lbagent.targets.bpf.flow_release import EndingFlow, LeftFlows, left_flows, release
from lbagent.targets.bpf.passing_rows import PassingRows
from lbagent.targets.data_plane import DataPlane, Feature
from lbagent.targets.followed_state import follow

POLL_S = 1.0
POLL_SHARE = 20  # pauses are so many times as long as reading the tables
HANDSHAKE_S = 0.3  # a backend answers a SYN sooner, and the client sends it again later
QUIET_POLLS = 2  # in which no flow is left
log = logging.getLogger(__name__)


class Successor(DataPlane, Protocol):
    """The data plane that takes over, or the comparing one where another proxy does."""

    taking_over: Callable[[], str]

    def share_with_bpf(self, snat_ports: tuple[int, int] | None) -> None:
        """Leave open connections, and these SNAT ports, to bpf; None: bpf is gone."""


class LeftBpf:
    """Owner of the programs and maps of an earlier agent, until no flow of theirs is left."""

    name = "bpf"

    def __init__(self, config: Config, successor: str = "nftables") -> None:
        self._name_of_successor = successor
        first, last = self.snat_ports = (
            generation.pinned_snat_ports(pins.pin_dir(config.bpffs)) or config.snat_port_range
        )
        self._config = replace(config, snat_ports=f"{first}-{last}")
        self._plane = BpfDataPlane(self._config, frozenset(Feature))
        self._rows = PassingRows()
        self._before: frozenset[EndingFlow] = frozenset()  # connections that had closed when the tables were read last
        self._successor: Successor
        self.flows = -1  # that are left; -1: not counted yet
        self.is_over = False

    @property
    def problem(self) -> str:
        """What `status` shows of it."""
        if self.is_over:
            return ""
        count = "some" if self.flows < 0 else str(self.flows)
        what = f"{count} flows of the data plane bpf are left, which it serves until they end"
        return f"{self._name_of_successor} takes over from bpf: {what}"

    async def open(self, served: DataPlane, require: Callable[[], None]) -> None:
        """Take the lock and read the maps; nothing changes. Raises Conflict while the earlier agent runs, KernelError."""
        await self._plane.open(require)
        self._successor = cast("Successor", served)
        self._successor.share_with_bpf(self.snat_ports)
        self._successor.taking_over = lambda: self.problem

    def close(self) -> None:
        """Close every descriptor; what is pinned serves on."""
        self._plane.close()

    async def run(self) -> None:
        """Wait until the other one has every frontend; let it have the new flows, and remove bpf after the last of its own."""
        served = self._successor
        await served.ready.wait()
        try:
            async with asyncio.TaskGroup() as group:
                await self._begin(served, group)
                await self._end_of_flows()
                raise _IsOver
        except* _IsOver:
            pass
        gone = await asyncio.to_thread(remove_held, self._plane.lock, pins.pin_dir(self._config.bpffs))
        self._plane.close()
        self.is_over = True
        log.info("bpf is taken over from", extra={"by": self._name_of_successor, "removed": len(gone)})
        served.share_with_bpf(None)

    async def _begin(self, served: DataPlane, group: asyncio.TaskGroup) -> None:
        await follow(self._plane, served, group, self._rows.state)
        await self._release_handshakes()
        await self._plane.serve(group)

    async def _release_handshakes(self) -> None:
        """Leave SYNs that are sent again to the other data plane: no backend has answered the first ones."""
        began, maps = time.monotonic(), self._plane.maps
        found = (await asyncio.to_thread(left_flows, maps)).unanswered
        if found:
            await asyncio.sleep(max(0.0, HANDSHAKE_S - (time.monotonic() - began)))
            still = (await asyncio.to_thread(left_flows, maps)).unanswered
            await asyncio.to_thread(release, maps, found & still)

    async def _end_of_flows(self) -> None:
        quiet, took_s = 0, 0.0
        while quiet < QUIET_POLLS:
            await asyncio.sleep(max(POLL_S, POLL_SHARE * took_s))
            began = time.monotonic()
            found = await asyncio.to_thread(self._look)
            took_s = time.monotonic() - began
            self.flows = found.open + len(found.unanswered)
            quiet = 0 if self.flows or found.closed else quiet + 1

    def _look(self) -> LeftFlows:
        """Read the flow tables; free connections that closed before the last look and had no packet since."""
        found = left_flows(self._plane.maps)
        release(self._plane.maps, found.closed & self._before)
        self._before = found.closed
        return found


class _IsOver(Exception):
    """No flow is left."""
