"""Whether a source of objects is gone, whether objects of it are refused, and whether objects do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName, Severity

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_sources(components: AgentComponents) -> Iterator[Condition]:
    """Name each source whose last list was no good, and each of which objects or fields are refused. Warnings do not count.

    A file that does not count as a whole is the operator's; a field or an object is that of whoever wrote it.
    """
    for source in components.sources:
        if not source.synced.is_set():
            continue
        messages = source.problems()
        refused = [message for message in messages if not message.warning]
        if not source.trusted:
            why = str(messages[0]) if messages else "its last list was no good"
            yield Condition(
                ConditionName.SOURCE_UNTRUSTED,
                source.name,
                f"source {source.name}: {why}; nothing counts as deleted until it is back",
                source.remedy,
            )
            refused = [message for message in refused if message is not messages[0]]
        if refused:
            whole = [message for message in refused if message.file and not message.subject]
            first = (whole or refused)[0]
            more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
            yield Condition(
                ConditionName.OBJECTS_REFUSED,
                source.name,
                f"source {source.name}: objects or fields are refused: {first}{more}",
                "mend the manifest; what was good before is served meanwhile",
                own_severity=Severity.FAULT if whole else None,
            )


def check_objects(components: AgentComponents) -> Iterator[Condition]:
    """Say so when objects that are good by themselves do not fit together. Warnings and contests do not count."""
    contested = {contest.message for contest in components.loop.contests}
    found = [message for message in components.loop.messages if not message.warning and message not in contested]
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"objects do not fit together: {found[0]}{more}"
        yield Condition(
            ConditionName.OBJECTS_MISMATCH, "objects", text, "mend one of the objects that the message names"
        )
