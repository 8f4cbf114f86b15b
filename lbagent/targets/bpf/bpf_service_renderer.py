"""BpfServiceRenderer: BPF maps and programs by the calls of the renderer API, for what uses renderers without the agent.

It opens the data plane at the first `flush`, which puts everything in force before a device takes packets, and writes at each
`flush` what was called since the one before. Programs are attached to the devices of `update_local_frontend_ifs`, or to those of
the setting `device`; Pods are behind the devices of `update_local_backend_ifs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from lbagent import config
from lbagent.config import Config
from lbagent.errors import ConfigError, LbError, NotFound
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.render.gathered_calls import GatheredCalls
from lbagent.render.renderer_types import Difference, ResyncEventData
from lbagent.render.service_renderer import HOST_PORTS, TRANSLATES
from lbagent.sync.runner import TargetRunner
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf.bpf_one_family import BpfOneFamily
from lbagent.targets.bpf.bpf_plane import BpfDataPlane
from lbagent.targets.bpf.bpf_removal import remove
from lbagent.targets.bpf.maps_compared import maps_compared, maps_dumped
from lbagent.targets.data_plane import Feature
from lbagent.targets.other_translator import OtherTranslator

SETTINGS = ("artifact", "attach", "bpffs", "device", "pod-device")  # the agent's, with the same values; and `family`
LISTS = ("device", "pod-device")  # of names, with a comma between two
_FAMILIES = {"ipv4": Family.IPV4, "ipv6": Family.IPV6}


class BpfServiceRenderer(GatheredCalls):
    """Gathers calls, and puts a State in force at `flush`."""

    def __init__(self, settings: Mapping[str, str], features: frozenset[Feature]) -> None:
        """Take the settings `artifact`, `attach`, `bpffs`, `device`, `pod-device` and `family`. Raises ConfigError."""
        super().__init__()
        given = dict(settings)
        family = given.pop("family", "")
        if family and family not in _FAMILIES:
            raise ConfigError(f"renderer bpf: family={family}: expected ipv4 or ipv6")
        if unknown := sorted(given.keys() - set(SETTINGS)):
            raise ConfigError(f"renderer bpf: unknown setting {unknown[0]!r}; there are family, {', '.join(SETTINGS)}")
        self._family = _FAMILIES.get(family)
        self._features = features
        flags = {
            key.replace("-", "_"): tuple(value.split(",")) if key in LISTS else value for key, value in given.items()
        }
        self._config = config.load(flags, {})
        families = frozenset(Family) if self._family is None else frozenset({self._family})
        self._other = OtherTranslator("bpf", families, self._config)
        self._plane: BpfDataPlane | None = None
        self._runner: TargetRunner | None = None
        self._generation = 0
        self._life: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._is_begun = asyncio.Event()

    # --- writing ---

    async def flush(self) -> None:
        """Put in force what was called. Raises Conflict while another agent or renderer serves, LbError, OSError.

        Cancelled, it ends all the same, before the next one begins: threads that attach programs cannot be cancelled.
        """
        await self._flushed()
        self._flushing = asyncio.create_task(self._put_in_force())
        await asyncio.shield(self._flushing)

    async def _flushed(self) -> None:
        """Wait until no `flush` is under way; what it raises is its caller's."""
        if self._flushing is not None:
            await asyncio.wait({self._flushing})

    async def _put_in_force(self) -> None:
        rows = tuple(self.rows())
        await self._other.require_none(rows)
        self._generation += 1
        desired = Desired(State(self._generation, rows))
        if self._life is not None and self._life.done():
            await self._stop()
        if self._life is None:
            await self._begin(desired)
        else:
            await self._while_alive(self._change(desired))
        self._other.wrote(rows)
        self.is_resync = False

    async def _begin(self, desired: Desired) -> None:
        self._is_begun.clear()
        self._life = asyncio.create_task(self._live(desired))
        await self._while_alive(self._is_begun.wait())

    async def _while_alive(self, work: Coroutine[Any, Any, object]) -> None:
        """Do something while the data plane serves. Raises what it raises, and what ends the data plane."""
        life, task = self._life, asyncio.create_task(work)
        assert life is not None
        await asyncio.wait({life, task}, return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            task.cancel()  # what it waits for does not come any more
            await asyncio.wait({task})
            await self._stop()
        await task

    async def _live(self, desired: Desired) -> None:
        """Serve until this task is cancelled. Raises what ends it."""
        made = self._config_of_calls()
        plane = BpfDataPlane(made, self._features)
        if self._family is not None:
            plane = BpfOneFamily(made, self._features, self._family)
        try:
            await plane.open(lambda: None)
            async with asyncio.TaskGroup() as group:
                await plane.start(group)
                runner = TargetRunner(plane)  # it is called again when paths to backends change
                group.create_task(runner.run())
                await _apply(runner, desired)
                await plane.serve(group)
                await runner.settled()  # devices are attached: paths lead by them
                group.create_task(plane.watch())
                self._plane, self._runner = plane, runner
                self._is_begun.set()
        except (BaseExceptionGroup, LbError, OSError) as error:
            if not self._is_begun.is_set():
                await asyncio.to_thread(plane.remove_new_pins)
            raise error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error from None
        finally:
            self._plane = self._runner = None
            plane.close()

    async def _change(self, desired: Desired) -> None:
        plane, runner, made = self._plane, self._runner, self._config_of_calls()
        assert plane is not None
        assert runner is not None
        if made != plane.config:
            await plane.reconfigure(made)
        if self.is_resync:
            await plane.repair()
        await _apply(runner, desired)

    def _config_of_calls(self) -> Config:
        """Return the settings, with the devices of the calls where these have none."""
        own = self._config
        return replace(
            own,
            device=own.device or tuple(self.frontend_ifs),
            pod_device=own.pod_device or tuple(self.backend_ifs),
        )

    async def _stop(self) -> None:
        """End the tasks; what is in force continues to serve. Raises what ended them before."""
        life, self._life = self._life, None
        if life is not None:
            life.cancel()
            with suppress(asyncio.CancelledError):
                await life

    # --- what there is ---

    async def dump(self) -> list[str]:
        """Return each frontend of the maps with its backends, `FRONTEND: BACKENDS`, sorted. Raises KernelError."""
        try:
            with KernelMaps.open(self._config.bpffs, create=False) as maps:
                return maps_dumped(maps)
        except NotFound:
            return []

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        """Return in what the maps differ from the snapshot; how backends are reached is not compared. Raises KernelError."""
        families = frozenset(Family) if self._family is None else {self._family}
        rows = tuple(row for each in snapshot.services for row in each.svcs if row.frontend.family in families)
        try:
            with KernelMaps.open(self._config.bpffs, create=False) as maps:
                return maps_compared(maps, State(0, rows))
        except NotFound:
            return [Difference("missing", "no map is there")] if rows else []

    def capabilities(self) -> frozenset[str]:
        """Return the words of `lbagent renderers`, and that it translates packets."""
        return frozenset({*map(str, self._features), TRANSLATES, HOST_PORTS})

    async def close(self, keep: bool) -> None:
        """Let go of everything; without `keep` programs and maps go. Raises Conflict, KernelError."""
        await self._flushed()
        try:
            await self._stop()
        finally:
            if not keep:
                await asyncio.to_thread(remove, self._config.bpffs, lambda: None)


async def _apply(runner: TargetRunner, desired: Desired) -> None:
    """Put a State in force. Raises what failed, also of a single frontend."""
    runner.set_desired(desired)
    await runner.settled()
    for failure in (runner.failure, *runner.target.failing.values()):
        if failure is not None:
            raise failure.error
