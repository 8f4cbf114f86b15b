"""Whether a Service claims frontends that another Service has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents
    from lbagent.resolve.ownership import Contest

MAX_NAMED = 20  # pairs of Services; the rest is counted
_REMEDY = (
    "take the claim out of one of the two Services; if it is not meant, find out who wrote it (docs/kubernetes.md)"
)


def check_contests(components: AgentComponents) -> Iterator[Condition]:
    """Name each pair of Services of which one has what the other one claims."""
    pairs: dict[tuple[str, str], list[Contest]] = {}
    for contest in components.loop.contests:
        pairs.setdefault((contest.loser, contest.winner), []).append(contest)
    for (loser, winner), contests in list(pairs.items())[:MAX_NAMED]:
        more = f", and {len(contests) - 1} more" if len(contests) > 1 else ""
        text = f"a claim of Service {loser} is not served: {contests[0].message.problem}{more}"
        yield Condition(ConditionName.FRONTEND_CONTESTED, f"{loser} {winner}", text, _REMEDY)
    if len(pairs) > MAX_NAMED:
        text = f"{len(pairs) - MAX_NAMED} more Services claim frontends that another Service has"
        yield Condition(ConditionName.FRONTEND_CONTESTED, "more", text, _REMEDY)
