"""Whether programs are still attached where the agent attached them. A link that was detached, or lost its pin, is made again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lbagent.agent.conditions.check_pins import are_away
from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.bpf.load import attach
from lbagent.errors import LbError

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


async def check_links(components: AgentComponents) -> Iterable[Condition]:
    """Look at every link and filter, and attach again what is not there any more."""
    keeper, datapath = components.devices, components.datapath
    if keeper is None or datapath is None:
        return ()
    if are_away(datapath.root, components):
        return ()  # check_pins.py says so; a link made now could not be pinned
    async with keeper.busy:  # no change of devices or programs meanwhile
        lost = await asyncio.to_thread(attach.lost, datapath.root, keeper.attached, datapath.hooked.programs)
    if not lost:
        keeper.lost = frozenset()
        return ()
    try:
        await keeper.attach_again()
        keeper.lost, failed = frozenset(), ""
    except LbError as error:
        keeper.lost, failed = frozenset(item for item, _ in lost), str(error)
    return [
        _condition(str(item), f"{item.hook} on {item.target.kind} {item.target.name}: {why}", failed)
        for item, why in lost
    ]


def _condition(subject: str, what: str, failed: str) -> Condition:
    if not failed:
        return Condition(ConditionName.LINK_DETACHED, subject, f"{what}; it was attached again", mended=True)
    text = f"{what}; it could not be attached again: {failed}"
    remedy = "no packet is balanced there; see `lbagent doctor`; it is tried again every few seconds"
    return Condition(ConditionName.LINK_DETACHED, subject, text, remedy)
