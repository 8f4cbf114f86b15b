"""Runs the checks of a running agent every few seconds, keeps since when each finding holds, and logs when one begins and ends.

The checks are in lbagent/checks/ and in the folders of the data planes. A finding is a condition:
`status`, the metrics and docs/operations.md have its name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from lbagent.checks.check_runner import CheckRunner
from lbagent.checks.table import CHECK_FAILED
from lbagent.errors import LbError
from lbagent.model.check import CheckGroup, Finding, Result, Severity

log = logging.getLogger(__name__)
LOGGED_BY_SOURCES = ("source-untrusted", "objects-refused")  # a source logs its own faults, once
INTERVAL_S = 3.0  # a condition shows within 10 s, also one that must be seen twice
MENDED_SHOWN_S = 30.0  # what has ended is shown so long: a scrape every 15 s sees it


class StandingCondition(Struct):
    """A condition that holds, or that ended a moment ago."""

    condition: Finding
    since: float  # seconds since the epoch
    until: float = 0.0  # monotonic seconds; until then it is shown though it has ended


class ConditionMonitor:
    """Runs the checks one after the other; `standing` is what they found last."""

    def __init__(self, groups: Iterable[CheckGroup[Any]]) -> None:
        self._runners = [(CheckRunner(check), context) for checks, context in groups for check in checks]
        self._order = {
            name: number
            for number, name in enumerate([*(runner.check.name for runner, _ in self._runners), CHECK_FAILED.name])
        }
        self._standing: dict[tuple[str, str], StandingCondition] = {}

    @property
    def standing(self) -> list[StandingCondition]:
        """What is wrong now, in the order of the checks, then of the subjects."""
        return sorted(
            self._standing.values(), key=lambda each: (self._order[each.condition.name], each.condition.subject)
        )

    def counts(self) -> dict[str, int]:
        """Return how many conditions of each name there are, of every name."""
        found = Counter(each.condition.name for each in self._standing.values())
        return {name: found[name] for name in self._order}

    def severities(self) -> dict[str, int]:
        """Return how many conditions of each severity there are, of every severity."""
        found = Counter(each.condition.severity for each in self._standing.values())
        return {severity.value: found[severity] for severity in Severity}

    async def run(self) -> None:
        """Look every few seconds, without end."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Run every check once. One that fails is itself a condition, and the others are run."""
        found: dict[tuple[str, str], Finding] = {}
        for runner, context in self._runners:
            for condition in await self._run(runner, context):
                found[condition.name, condition.subject] = condition
        self._begin(found)
        self._end(found)

    async def _run(self, runner: CheckRunner[Any], context: Any) -> list[Finding]:
        try:
            return await runner.run(context)
        except (LbError, OSError) as error:
            name = runner.check.name
            return [CHECK_FAILED.finding(Result(name, {"check": name, "error": error}))]

    def _begin(self, found: dict[tuple[str, str], Finding]) -> None:
        for key, condition in found.items():
            until = time.monotonic() + MENDED_SHOWN_S if condition.mended else 0.0
            known = self._standing.get(key)
            if known is None or (condition.mended and not known.condition.mended):
                event = "a condition ended" if condition.mended else "a condition began"
                if condition.name not in LOGGED_BY_SOURCES:
                    log.warning(event, extra=_fields(condition))
            self._standing[key] = StandingCondition(condition, known.since if known else time.time(), until)

    def _end(self, found: dict[tuple[str, str], Finding]) -> None:
        now = time.monotonic()
        for key in [key for key, each in self._standing.items() if key not in found and each.until <= now]:
            ended = self._standing.pop(key).condition
            if not ended.mended and ended.name not in LOGGED_BY_SOURCES:
                log.info("a condition ended", extra={"condition": ended.name, "subject": ended.subject})


def _fields(condition: Finding) -> dict[str, str]:
    fields = {"condition": condition.name, "severity": condition.severity.value}
    fields |= {"subject": condition.subject, "what": condition.text}
    return fields | ({"remedy": condition.remedy} if condition.remedy else {})
