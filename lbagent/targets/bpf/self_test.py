"""The self-test of a running agent: whether the tail calls are those that were loaded, and whether packets find their frontends.

It runs every few seconds, not at each probe, and changes nothing: the packets run through the dry programs over the maps in force.
These take a second of the verifier to load, so the agent forwards first and tests then; `/readyz` waits for the first run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from lbagent.bpf.load.tail_call_check import tail_call_faults
from lbagent.errors import LbError
from lbagent.targets.data_plane import SelfTestResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lbagent.bpf.load.datapath import Datapath
    from lbagent.bpf.run.dry_programs import DryPrograms
    from lbagent.targets.bpf.bpf_view import PlaneParts
    from lbagent.targets.bpf.explained_plane import ExplainedPlane

log = logging.getLogger(__name__)
EVERY_S = 5.0
QUIET_START_S = 30.0  # before the first run where no port serves /readyz
AGAIN_S = 0.3  # a fault counts if it is there once more after this time: a change may have been half done
_MAX_FAULTS = 3  # in one sentence


class SelfTest:
    """Runs the test. `result` is that of the last run."""

    def __init__(self, plane: PlaneParts, explained: ExplainedPlane) -> None:
        self._plane, self._explained = plane, explained
        self.result = SelfTestResult()
        self._without: tuple[str, str] = ("", "")  # programs in force whose dry programs could not be loaded, and why

    async def run(self) -> None:
        """Test without end."""
        if not self._plane.config.healthz_listen_addresses:
            await asyncio.sleep(QUIET_START_S)
        while True:
            await self.test()
            await asyncio.sleep(EVERY_S)

    async def test(self) -> None:
        """Test once."""
        began = time.monotonic()
        faults = await self._faults()
        if faults and not self.result.fault:
            await asyncio.sleep(AGAIN_S)
            faults = await self._faults()
        more = len(faults) - _MAX_FAULTS
        text = "; ".join(faults[:_MAX_FAULTS]) + (f"; {more} more" if more > 0 else "")
        if text != self.result.fault:
            if text:
                log.error("the self-test failed", extra={"error": text})
            else:
                log.info("the self-test passes again")
        self.result = SelfTestResult(text, self.result.runs + 1, self._without[1], time.monotonic() - began)

    async def _faults(self) -> list[str]:
        plane, keeper = self._plane, self._plane.devices
        if plane.datapath is None or keeper is None:
            return []
        try:
            async with keeper.busy, self._explained.busy:  # both are held while programs change
                hooked = plane.datapath.hooked
                found = await asyncio.to_thread(
                    tail_call_faults, hooked.root, hooked.artifact.programs, hooked.generation
                )
                found += [f"{item} is not attached" for item in keeper.lost if not item.optional]
            if found:
                return found
            async with self._explained.busy:
                return await asyncio.to_thread(self._packet_faults, plane.datapath.hooked)
        except LbError as error:
            return [f"the self-test could not run: {error}"]

    def _packet_faults(self, datapath: Datapath) -> list[str]:
        return list(self._run_packets(datapath))

    def _run_packets(self, datapath: Datapath) -> Iterator[str]:
        from lbagent.targets.bpf import self_test_packets

        plane = self._plane
        at = self_test_packets.places(self._explained.hooks(), plane.follower.network)
        programs = self._programs(datapath) if at else None
        if programs is not None:
            target = plane.target
            yield from self_test_packets.faults(programs, at, target.current_state, target.failing)

    def _programs(self, datapath: Datapath) -> DryPrograms | None:
        """Return the dry programs; None where the kernel does not take them, which is no fault of those in force."""
        if self._without[0] == datapath.key:
            return None
        try:
            found = self._explained.programs(datapath)
        except (LbError, OSError) as error:
            log.warning("the self-test has no packets", extra={"error": str(error)})
            self._without = datapath.key, str(error)
            return None
        self._without = ("", "")
        return found
