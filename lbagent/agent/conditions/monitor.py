"""Looks for conditions every few seconds, remembers since when each holds, and logs when one begins and ends.

A check is a function that takes the components of the agent and gives the conditions that hold now; one that mends something gives
it as `mended`. To add a check: a file beside this one, and its name in `every_check` (docs/operations.md has a line for each name).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from lbagent.agent.conditions.condition import Condition, ConditionName, Severity
from lbagent.errors import LbError

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents

log = logging.getLogger(__name__)
LOGGED_BY_SOURCES = (
    ConditionName.SOURCE_UNTRUSTED,
    ConditionName.OBJECTS_REFUSED,
)  # a source logs its own faults, once
INTERVAL_S = 3.0  # a condition shows within 10 s, also one that must be seen twice
MENDED_SHOWN_S = 30.0  # what was mended is shown so long: a scrape every 15 s sees it

Check = Callable[["AgentComponents"], Iterable[Condition] | Awaitable[Iterable[Condition]]]


class StandingCondition(Struct):
    """A condition that holds, or that was mended a moment ago."""

    condition: Condition
    since: float  # seconds since the epoch
    until: float = 0.0  # monotonic seconds; until then it is shown though it is mended


class ConditionMonitor:
    """Runs the checks one after the other; `standing` is what they found last."""

    def __init__(self, components: AgentComponents, checks: Sequence[Check]) -> None:
        self._components = components
        self._checks = checks
        self._standing: dict[tuple[str, str], StandingCondition] = {}

    @property
    def standing(self) -> list[StandingCondition]:
        """What is wrong now, in the order of the names, then of the subjects."""
        order = list(ConditionName)
        return sorted(
            self._standing.values(), key=lambda each: (order.index(each.condition.name), each.condition.subject)
        )

    def counts(self) -> dict[str, int]:
        """Return how many conditions of each name there are, of every name."""
        found = Counter(each.condition.name for each in self._standing.values())
        return {name.value: found[name] for name in ConditionName}

    def severities(self) -> dict[str, int]:
        """Return how many conditions of each severity there are, of every severity."""
        found = Counter(each.condition.severity for each in self._standing.values())
        return {severity.value: found[severity] for severity in Severity}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Run every check once. One that fails is itself a condition, and the others are run."""
        found: dict[tuple[str, str], Condition] = {}
        for check in self._checks:
            for condition in await self._run(check):
                found[condition.name, condition.subject] = condition
        self._begin(found)
        self._end(found)

    async def _run(self, check: Check) -> list[Condition]:
        name = getattr(check, "__name__", type(check).__name__)
        try:
            result = check(self._components)
            return list(await result if inspect.isawaitable(result) else result)
        except (LbError, OSError) as error:
            text = f"the check {name} could not be made: {error}"
            return [Condition(ConditionName.CHECK_FAILED, name, text)]

    def _begin(self, found: dict[tuple[str, str], Condition]) -> None:
        for key, condition in found.items():
            until = time.monotonic() + MENDED_SHOWN_S if condition.mended else 0.0
            known = self._standing.get(key)
            if known is None or (condition.mended and not known.condition.mended):
                event = "a condition was mended" if condition.mended else "a condition began"
                if condition.name not in LOGGED_BY_SOURCES:
                    log.warning(event, extra=_fields(condition))
            self._standing[key] = StandingCondition(condition, known.since if known else time.time(), until)

    def _end(self, found: dict[tuple[str, str], Condition]) -> None:
        now = time.monotonic()
        for key in [key for key, each in self._standing.items() if key not in found and each.until <= now]:
            ended = self._standing.pop(key).condition
            if not ended.mended and ended.name not in LOGGED_BY_SOURCES:
                log.info("a condition ended", extra={"condition": ended.name.value, "subject": ended.subject})


def _fields(condition: Condition) -> dict[str, str]:
    fields = {"condition": condition.name.value, "severity": condition.severity.value}
    fields |= {"subject": condition.subject, "what": condition.text}
    return fields | ({"remedy": condition.remedy} if condition.remedy else {})
