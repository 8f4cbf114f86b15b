"""The writes by which the source ranges of a frontend change, in an order that no client can see. Pure.

Whether a listed client is let in says the master's flag, and the list is many entries: no order of single writes turns "only
these" into "all but those" without a moment in which a client is let in that neither rule lets in, or kept out that both let
in. So while the flag turns, the entries say themselves what they mean (SOURCE_RANGE_LETS_IN, _KEEPS_OUT): then the flag's own
write changes nothing for them, and for the clients that neither list names just what the new rule asks for. The order:

    what is listed says itself what it means -> what shall be listed, saying it -> slot 0
    -> what is not listed any more out, shortest prefix first -> what is listed is a plain entry again

Each client's fate changes once at most, and straight to the new one: an entry that comes has the last word on all its clients
but those of longer ones that come too, and of the entries that go the longest that meets a client goes last.
"""

from __future__ import annotations

from lbagent.maps import frontend_codec
from lbagent.maps.frontend_codec import PRESENT, FrontendEntries
from lbagent.maps.layout import SOURCE_RANGE_KEEPS_OUT, SOURCE_RANGE_LETS_IN, U32
from lbagent.model.family import Family
from lbagent.model.flags import ServiceFlags
from lbagent.sync.target.steps import Phase, Steps

_LETS_IN, _KEEPS_OUT = bytes((SOURCE_RANGE_LETS_IN,)), bytes((SOURCE_RANGE_KEEPS_OUT,))


def range_steps(steps: Steps, owner: int, family: Family, old: FrontendEntries, new: FrontendEntries) -> None:
    """Add the steps that replace the source ranges of a frontend."""
    turns = _turns(old, new)
    name = family.map("source_range")
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
