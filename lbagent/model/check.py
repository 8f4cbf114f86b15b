"""Checks of the node and the agent, each with the sentence for a problem and its remedy. Records only.

`lbagent doctor` runs checks before the agent starts; the agent runs them every few seconds and shows their results as conditions.
A data plane offers checks of its own, so the records are here; the table of all is lbagent/checks/table.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

C = TypeVar("C")  # what the check reads
MAX_RESULTS = 20  # of a check that counts the others


class Severity(StrEnum):
    """The owner of a condition. Words of `status -o json` and of the metric `lbagent_conditions`: never rename one."""

    DEGRADED = "degraded"  # of objects that users write: a dead endpoint, a refused field; the node does its work
    FAULT = "fault"  # of the node, the agent or its dependencies: the operator has to act


class Level(StrEnum):
    """The weight of a finding before the start. The words are those of `doctor -o json`: never rename one."""

    OK = "ok"
    NOTE = "note"  # works, for information
    WARNING = "warning"  # works worse, or not for some packets
    ERROR = "error"  # the agent will not start or not forward


class When(Enum):
    """Who runs a check."""

    OFFLINE = "doctor"
    RUNNING = "agent"
    BOTH = "doctor and agent"

    @property
    def offline(self) -> bool:
        """Whether `lbagent doctor` runs it."""
        return self is not When.RUNNING

    @property
    def running(self) -> bool:
        """Whether the agent runs it: its findings are conditions."""
        return self is not When.OFFLINE


class Result(Struct, frozen=True):
    """One result of a check.

    `subject` distinguishes results of one check: a device, a map, an address. It does not change while the problem lasts.
    `values` fill the templates of the check. A field that is not None (`text`: not '') replaces the check's own.
    """

    subject: str = ""
    values: Mapping[str, object] = {}
    text: str = ""
    remedy: str | None = None
    severity: Severity | None = None
    level: Level | None = None  # OK: no problem, and doctor shows the check's sentence `good`
    mended: bool = False  # the agent has repaired it already
    exit_code: int = 1  # of doctor, where the level is ERROR


class Finding(Struct, frozen=True):
    """A result in words: the problem, and what to do about it ('' when nothing). The agent's findings are conditions."""

    name: str
    subject: str
    text: str
    remedy: str = ""
    severity: Severity = Severity.FAULT
    level: Level = Level.WARNING
    mended: bool = False
    exit_code: int = 1


class Check(NamedTuple, Generic[C]):
    """A row of the table of checks. `text`, `remedy` and `good` are templates (str.format) for the values of a result."""

    name: str  # of the metric `lbagent_condition` and of docs/operations.md: never rename one
    looks_at: str  # a line of docs/operations.md
    run: Callable[[C], Iterable[Any] | Awaitable[Iterable[Any]]]  # returns Results, or input of `describe`
    text: str = ""
    remedy: str = ""
    good: str = ""  # shown by doctor if there is no problem
    when: When = When.RUNNING
    severity: Severity = Severity.FAULT  # while the agent runs
    level: Level = Level.WARNING  # before the start
    for_s: float = 0.0  # in the agent a result counts after this time
    describe: Callable[[C, Sequence[Any]], Iterable[Result]] | None = None  # of the first results of `run`
    more: str = ""  # the sentence about {count} more results than are shown; '': all are shown

    def finding(self, result: Result) -> Finding:
        """Return a result in words."""
        level = result.level or self.level
        template = self.good if level is Level.OK else self.text
        remedy = self.remedy.format_map(result.values) if result.remedy is None else result.remedy
        return Finding(
            self.name,
            result.subject,
            result.text or template.format_map(result.values),
            "" if level is Level.OK else remedy,
            result.severity or self.severity,
            level,
            result.mended,
            result.exit_code,
        )

    def findings(self, context: C) -> list[Finding]:
        """Run a check that does not wait, and return its results in words."""
        found = self.run(context)
        assert not isinstance(found, Awaitable)
        return [self.finding(result) for result in found]


class CheckGroup(NamedTuple, Generic[C]):
    """Checks of one owner, and what they read."""

    checks: Sequence[Check[C]]
    context: C
