"""Whether frames are lost after the programs sent them, and whether the kernel keeps next hops resolved as it was asked to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_frames(components: AgentComponents) -> Iterator[Condition]:
    """Name the devices that did not take a frame of XDP in the last minute."""
    for name, text in components.network.frames_not_taken(time.monotonic()).items():
        remedy = (
            "a device that refuses frames is sent to by tc from now on; a full queue needs less traffic, or more queues"
        )
        yield Condition(ConditionName.FRAMES_NOT_TAKEN, name, text, remedy)


def check_neighbours(components: AgentComponents) -> Iterator[Condition]:
    """Say so when there are more next hops than are kept resolved, or the kernel's table has no room for them."""
    for subject, text, remedy in components.network.keeper.problems():
        yield Condition(ConditionName.NEIGHBOURS_NOT_KEPT, subject, text, remedy)
