"""Whether a source of objects is gone, and whether objects of it are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_sources(components: AgentComponents) -> Iterator[Condition]:
    """Name each source whose last list was no good, and each of which objects or fields are refused. Warnings do not count."""
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
            more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
            yield Condition(
                ConditionName.OBJECTS_REFUSED,
                source.name,
                f"source {source.name}: objects or fields are refused: {refused[0]}{more}",
                "mend the manifest; what was good before is served meanwhile",
            )
