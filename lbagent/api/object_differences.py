"""The answers of capabilities/second_list.py: in what data planes differ from a new list of the objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lbagent.api.plane_differences import DifferenceRow, RepairRequest, chosen_planes, differences, repair
from lbagent.errors import NotFound
from lbagent.render.renderer_types import Difference
from lbagent.sync.object_verification import ObjectVerification, Verified
from lbagent.sync.runner import TargetRunner


class VerifiedPlanes(NamedTuple):
    """The comparison with the sources, and the data planes."""

    verification: ObjectVerification
    runners: Sequence[TargetRunner]


def _rows(parts: VerifiedPlanes, names: Sequence[str], found: Verified) -> list[DifferenceRow]:
    """Return the differences of these data planes; without any, a row for each source that missed changes."""
    of_frontends = [
        DifferenceRow.of(name, Difference(each.kind, each.detail, each.service, each.frontend.with_protocol()))
        for name in names
        for each in parts.verification.at_frontends_of(name, found)
    ]
    return of_frontends or [
        DifferenceRow.of(names[0], Difference("stale", f"source {source} has missed changes of {', '.join(places)}"))
        for source, places in found.missed.items()
    ]


async def object_differences(parts: VerifiedPlanes, renderer: str) -> list[DifferenceRow]:
    """Return the differences from a new list, then those of the data planes from their State.

    Raises NotFound, LbError, OSError, and TimedOut where the sources cannot be listed.
    """
    names = _names(parts, renderer)
    found = await parts.verification.look()
    return [*_rows(parts, names, found), *await differences(parts.runners, renderer)]


async def repair_objects(parts: VerifiedPlanes, wanted: RepairRequest) -> list[DifferenceRow]:
    """Have listed again what was missed, and written again what differs; return it. Raises as `object_differences`."""
    names = _names(parts, wanted.renderer)
    found = await parts.verification.look()
    left = () if found.is_clean else _rows(parts, names, await parts.verification.repair())
    rows = [replace(row, repaired=row not in left) for row in _rows(parts, names, found)]
    return [*rows, *await repair(parts.runners, wanted.renderer)]


def _names(parts: VerifiedPlanes, renderer: str) -> list[str]:
    """Return the names of the chosen data planes. Raises NotFound."""
    names = [plane.name for plane in chosen_planes(parts.runners, renderer)]
    if not names:
        raise NotFound("this agent has no data plane")
    return names
