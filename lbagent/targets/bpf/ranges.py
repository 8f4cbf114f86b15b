"""The writes by which the source ranges of a frontend change, in an order that no client can see. Pure.

Whether a listed client is let in says the master's flag, and the list is many entries: no order of single writes turns "only
these" into "all but those" without a moment in which a client is let in that neither rule lets in, or kept out that both let
in. So while the flag turns, the entries have their own meaning (SOURCE_RANGE_LETS_IN, _KEEPS_OUT): then the flag's own
write changes nothing for them, and for the clients that neither list names just what the new rule asks for. The order:

    what is listed says itself what it means -> what shall be listed, saying it -> slot 0
    -> what is not listed any more out, shortest prefix first -> what is listed is a plain entry again

Each client's fate changes once at most, and straight to the new one: an entry that comes has the last word on all its clients
but those of longer ones that come too, and of the entries that go the longest that meets a client goes last.

Where the map has no room for both lists, what leaves goes first, and clients are refused that neither list refuses, until the
new list is written; none is admitted that neither list admits:

    where the list names who is refused: its entries refuse by themselves -> slot 0 without "deny": all clients are refused
    -> what is not listed any more out, shortest prefix first -> what shall be listed -> slot 0 -> plain entries again
"""

from __future__ import annotations

from lbagent.maps import frontend_codec
from lbagent.maps.frontend_codec import PRESENT, FrontendEntries
from lbagent.maps.layout import SOURCE_RANGE_KEEPS_OUT, SOURCE_RANGE_LETS_IN, U32
from lbagent.maps.map_names import family_map
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.targets.bpf.steps import Phase, Steps

_LETS_IN, _KEEPS_OUT = bytes((SOURCE_RANGE_LETS_IN,)), bytes((SOURCE_RANGE_KEEPS_OUT,))


def range_steps(steps: Steps, owner: int, family: Family, old: FrontendEntries, new: FrontendEntries) -> None:
    """Add the steps that replace the source ranges of a frontend."""
    turns = _turns(old, new)
    name = family_map(family, "source_range")
    has, wanted = dict.fromkeys(old.ranges, PRESENT) | dict(old.verdicts), new.ranges
    verdict = PRESENT
    if turns:
        before, verdict = (_KEEPS_OUT, _LETS_IN) if _denies(old) else (_LETS_IN, _KEEPS_OUT)
        into = steps.at(Phase.RANGE_IN, name)
        for key in sorted(key for key, value in has.items() if value == PRESENT):
            into.add(owner, key, before)
    for key in sorted(key for key in wanted if has.get(key) != verdict):
        steps.at(Phase.RANGE_IN, name).add(owner, key, verdict)
    out = Phase.RANGE_OUT if _denies(old) is not None else Phase.RANGE_CLEAR
    for key in sorted(has.keys() - wanted, key=U32.unpack_from):
        steps.at(out, name).add(owner, key)
    for key in sorted(wanted) if verdict != PRESENT else ():
        steps.at(Phase.RANGE_PLAIN, name).add(owner, key, PRESENT)


def range_steps_in_full_map(
    steps: Steps, owner: int, frontend: L3n4Addr, old: FrontendEntries, new: FrontendEntries
) -> None:
    """Add the steps that replace the source ranges of a frontend where its new list has no room beside its old one."""
    name = family_map(frontend.family, "source_range")
    has = dict.fromkeys(old.ranges, PRESENT) | dict(old.verdicts)
    if _denies(old):
        close = steps.at(Phase.RANGE_CLOSE, name)
        for key in sorted(key for key, value in has.items() if value != _KEEPS_OUT):
            close.add(owner, key, _KEEPS_OUT)
        has = dict.fromkeys(has, _KEEPS_OUT)
        flags = frontend_codec.flags_of(old.slots[0]) & ~ServiceFlags.SOURCE_RANGE_DENY
        master = frontend_codec.with_flags(old.slots[0], flags)
        key, service_map = frontend_codec.service_key(frontend, 0), family_map(frontend.family, "service")
        steps.at(Phase.MASTER_CLOSE, service_map).add(owner, key, master)
        if new.slots.get(0) == old.slots[0]:  # else it is among the slots that change
            steps.at(Phase.MASTER_IN, service_map).add(owner, key, old.slots[0])
    for key in sorted(has.keys() - new.ranges, key=U32.unpack_from):
        steps.at(Phase.RANGE_ROOM, name).add(owner, key)
    verdict = _KEEPS_OUT if _denies(new) else PRESENT
    for key in sorted(key for key in new.ranges if has.get(key) != verdict):
        steps.at(Phase.RANGE_IN, name).add(owner, key, verdict)
    for key in sorted(new.ranges) if verdict != PRESENT else ():
        steps.at(Phase.RANGE_PLAIN, name).add(owner, key, PRESENT)


def _denies(rows: FrontendEntries) -> bool | None:
    """Return whether the master keeps listed clients out; None when it does not ask, or is not there."""
    master = rows.slots.get(0)
    if master is None:
        return None
    flags = frontend_codec.flags_of(master)
    return bool(flags & ServiceFlags.SOURCE_RANGE_DENY) if flags & ServiceFlags.SOURCE_RANGE else None


def _turns(old: FrontendEntries, new: FrontendEntries) -> bool:
    """Return whether one master's write makes listed clients of those that are not."""
    before, after = _denies(old), _denies(new)
    return old.id == new.id and None not in (before, after) and before is not after
