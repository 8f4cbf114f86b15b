"""A check of the agent by itself, over components of which only what it looks at is there."""

from __future__ import annotations

from typing import Any

from lbagent.checks.check_runner import CheckRunner
from lbagent.checks.running_context import RunningContext
from lbagent.checks.table import running_checks
from lbagent.model.check import Finding


class Look:
    """Runs the checks of these names, again and again."""

    def __init__(self, *names: str) -> None:
        self._runners = [CheckRunner(check) for check in running_checks() if check.name in names]
        assert len(self._runners) == len(names)

    def __call__(self, agent: Any) -> list[Finding]:
        context = RunningContext(agent)
        return [found for runner in self._runners for found in runner.findings(context, runner.check.run(context))]  # type: ignore[arg-type]
