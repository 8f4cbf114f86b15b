"""The answers of capabilities/data_planes.py: in what data planes differ from their State, and their repair."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from lbagent.errors import ConfigError, LbError, NotFound, TimedOut
from lbagent.render.renderer_types import Difference
from lbagent.sync.runner import TargetRunner
from lbagent.targets.data_plane import DataPlane

REPAIR_S = 5.0  # for one data plane; what differs longer counts as not repaired
CHECK_INTERVAL_S = 0.1
KUBE_PROXY = "kube-proxy"  # the name of its rules beside the names of data planes
CANNOT_REPAIR = "kube-proxy's rules are not lbagent's: kube-proxy writes them; leave out --repair"


class DifferenceRow(Struct, frozen=True):
    """One difference. `service` (NAMESPACE/NAME) and `frontend` are null for what belongs to no Service."""

    renderer: str
    service: str | None
    frontend: str | None
    kind: str  # missing, stale, differs
    detail: str
    repaired: bool
    difference: str  # all of it as a sentence

    @classmethod
    def of(cls, renderer: str, found: Difference, *, repaired: bool = False) -> DifferenceRow:
        """Return the row of a difference."""
        return cls(renderer, found.service, found.frontend, found.kind, found.detail, repaired, str(found))


class RepairRequest(Struct):
    """Which data plane: '' is each one of the agent."""

    renderer: str = ""


async def differences(runners: Sequence[TargetRunner], renderer: str) -> list[DifferenceRow]:
    """Return the differences of a data plane, '' of each.

    Raises NotFound, TimedOut before the start, LbError, OSError. Of several data planes, one that cannot be compared is a
    difference itself: it hides no difference of the others.

    `kube-proxy` is no data plane of lbagent: its rules are compared with the State of the first one; NotFound where there are none.
    """
    if renderer == KUBE_PROXY:
        return await _of_kube_proxy(runners)
    return await _of_each(chosen_planes(runners, renderer), _differences)


async def repair(runners: Sequence[TargetRunner], renderer: str) -> list[DifferenceRow]:
    """Repair what differs, and return it; `repaired`: a second look does not find it. Raises as `differences`."""
    if renderer == KUBE_PROXY:
        raise ConfigError(CANNOT_REPAIR)
    return await _of_each(chosen_planes(runners, renderer), _repaired)


async def _of_kube_proxy(runners: Sequence[TargetRunner]) -> list[DifferenceRow]:
    from lbagent.targets.kube_proxy.compared import compared_with

    plane: DataPlane = runners[0].target  # type: ignore[assignment]
    _require_state(plane)
    found = await compared_with(lambda: plane.current_state)
    return [DifferenceRow.of(KUBE_PROXY, each) for each in found]


def _require_state(plane: DataPlane) -> None:
    if not plane.first_pass.is_set():
        raise TimedOut(f"{plane.name} has no state in force yet; `lbagent status` shows what it waits for")


async def _of_each(
    planes: Sequence[DataPlane], rows_of: Callable[[DataPlane], Coroutine[Any, Any, list[DifferenceRow]]]
) -> list[DifferenceRow]:
    rows = []
    for plane in planes:
        try:
            _require_state(plane)
            rows += await rows_of(plane)
        except (LbError, OSError) as error:
            if len(planes) == 1:
                raise
            rows.append(DifferenceRow.of(plane.name, Difference("differs", f"it cannot be compared: {error}")))
    return rows


async def _differences(plane: DataPlane) -> list[DifferenceRow]:
    return [DifferenceRow.of(plane.name, found) for found in await plane.verify()]


async def _repaired(plane: DataPlane) -> list[DifferenceRow]:
    found = await plane.repair()
    left = await _left(plane, found) if found else ()
    return [DifferenceRow.of(plane.name, each, repaired=each not in left) for each in found]


async def _left(plane: DataPlane, found: Sequence[Difference]) -> Sequence[Difference]:
    """Return what still differs when the data plane had REPAIR_S."""
    until = time.monotonic() + REPAIR_S
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        left = await plane.verify()
        if not any(each in left for each in found) or time.monotonic() > until:
            return left


def chosen_planes(runners: Sequence[TargetRunner], renderer: str) -> list[DataPlane]:
    """Return the data planes of the agent, or the one of this name."""
    planes: list[DataPlane] = [runner.target for runner in runners]  # type: ignore[misc]
    chosen = [plane for plane in planes if renderer in ("", plane.name)]
    if not chosen:
        names = ", ".join(plane.name for plane in planes)
        raise NotFound(f"renderer {renderer!r} is none of this agent's: it has {names}")
    return chosen
