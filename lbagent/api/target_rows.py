"""How the targets of the loop are, as the API says it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lbagent.api.types import TargetStatus

if TYPE_CHECKING:
    from lbagent.sync.runner import TargetRunner
    from lbagent.sync.target_protocol import Target


def target_status(runner: TargetRunner) -> TargetStatus:
    """Return how a target is, now."""
    target = runner.target
    return TargetStatus(
        target.name,
        target.ready.is_set(),
        runner.in_sync,
        target.generation,
        len(target.failing),
        target.waiting,
        runner.error,
    )


def problem_of_target(runner: TargetRunner) -> str:
    """Return what is wrong with a target; '' when nothing is."""
    return runner.error or runner.target.waiting


def problems_of_targets(runners: Iterable[TargetRunner], serving: Target) -> Iterator[str]:
    """Yield what is wrong with the targets that have no lines of their own in the status."""
    for runner in runners:
        text = problem_of_target(runner)
        if text and runner.target is not serving:
            yield f"target {runner.target.name}: {text}"
