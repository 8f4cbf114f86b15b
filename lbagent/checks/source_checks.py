"""Whether a source of objects is available, whether its objects are refused, and whether objects match each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lbagent.checks.running_agent import RunningAgent
from lbagent.model.check import MAX_RESULTS, Check, Result, Severity

if TYPE_CHECKING:
    from lbagent.model.message import Message
    from lbagent.objects.source import Source
    from lbagent.resolve.ownership import Contest


def source_untrusted(agent: RunningAgent) -> Iterator[Result]:
    """Report each source whose last list was rejected."""
    for source in agent.sources:
        if source.synced.is_set() and (why := source.distrust):
            yield Result(source.name, {"source": source.name, "why": str(why)}, remedy=source.remedy)


def objects_refused(agent: RunningAgent) -> Iterator[Result]:
    """Report each source with refused objects or fields. Warnings do not count.

    A refused whole file is the operator's problem; a field or an object is its author's.
    """
    for source in agent.sources:
        refused = _refused(source) if source.synced.is_set() else []
        if refused:
            whole = [message for message in refused if message.file and not message.subject]
            values = {"source": source.name, "first": (whole or refused)[0], "more": _more(refused)}
            yield Result(source.name, values, severity=Severity.FAULT if whole else None)


def _refused(source: Source) -> list[Message]:
    """Return the messages about refusals; source_untrusted reports the cause of distrust."""
    cause = source.distrust
    return [message for message in source.problems() if not message.warning and message != cause]


def objects_mismatch(agent: RunningAgent) -> Iterator[Result]:
    """Report objects that are valid but do not match each other. Warnings and contests do not count."""
    loop = agent.loop
    contested = {contest.message for contest in loop.contests}
    found = [message for message in loop.messages if not message.warning and message not in contested]
    if found:
        yield Result("objects", {"first": found[0], "more": _more(found)})


def objects_missed(agent: RunningAgent) -> Iterator[Result]:
    """Report what the last comparison with a new list found, and what was repaired a moment ago."""
    verification = agent.verification
    if verification is None:
        return
    mended = verification.last.is_clean
    found = verification.repaired if mended else verification.last
    for source, places in found.missed.items():
        yield Result(source, {"what": f"source {source} has missed changes of {', '.join(places)}"}, mended=mended)
    if found.differences and not found.missed:
        what = f"{len(found.differences)} differences from the objects, first: {found.differences[0]}"
        yield Result("objects", {"what": what}, mended=mended)


def _more(messages: Sequence[Message]) -> str:
    return f", and {len(messages) - 1} more" if len(messages) > 1 else ""


def frontend_contested(agent: RunningAgent) -> Iterator[Result]:
    """Report each pair of Services of which one has what the other claims."""
    pairs: dict[tuple[str, str], list[Contest]] = {}
    for contest in agent.loop.contests:
        pairs.setdefault((contest.loser, contest.winner), []).append(contest)
    for (loser, winner), contests in list(pairs.items())[:MAX_RESULTS]:
        more = f", and {len(contests) - 1} more" if len(contests) > 1 else ""
        values = {"loser": loser, "problem": contests[0].message.problem, "more": more}
        yield Result(f"{loser} {winner}", values)
    if len(pairs) > MAX_RESULTS:
        text = f"{len(pairs) - MAX_RESULTS} more Services claim frontends that another Service has"
        yield Result("more", text=text)


CHECKS = (
    Check(
        "source-untrusted",
        "whether the last list of each source was good",
        source_untrusted,
        "source {source}: {why}; nothing counts as deleted until it is back",
    ),
    Check(
        "objects-refused",
        "whether objects or fields are refused",
        objects_refused,
        "source {source}: objects or fields are refused: {first}{more}",
        "fix the manifest; what was good before is served meanwhile",
        severity=Severity.DEGRADED,
    ),
    Check(
        "objects-missed",
        "whether the state is that of the objects of a new list (`--verify-every`)",
        objects_missed,
        "{what}",
        "the agent lists them again; if it recurs, look for what stops watches between the agent and its source, and run"
        " `lbagent verify --api`",
    ),
    Check(
        "objects-mismatch",
        "whether objects fit together",
        objects_mismatch,
        "objects do not fit together: {first}{more}",
        "fix one of the objects that the message names",
        severity=Severity.DEGRADED,
    ),
    Check(
        "frontend-contested",
        "whether a Service claims frontends that another Service has",
        frontend_contested,
        "a claim of Service {loser} is not served: {problem}{more}",
        "remove the claim from one of the two Services; if it is not intended, find its author (docs/kubernetes.md)",
    ),
)
