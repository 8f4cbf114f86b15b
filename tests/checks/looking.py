"""A check of the agent by itself, over components of which only what it looks at is there."""

from __future__ import annotations

from typing import Any

from lbagent.checks.check_runner import CheckRunner
from lbagent.checks.table import every_check
from lbagent.model.check import Check, Finding
from lbagent.targets.bpf.checks.bpf_checks import bpf_checks
from lbagent.targets.bpf.checks.running_context import RunningContext


def conditions() -> list[Check[Any]]:
    """Return the checks of a running agent whose data plane is BPF's."""
    return [check for check in every_check() if check.when.running]


class Look:
    """Runs the checks of these names, again and again. What those of BPF read are parts of its data plane."""

    def __init__(self, *names: str) -> None:
        self._runners = [CheckRunner(check) for check in conditions() if check.name in names]
        assert len(self._runners) == len(names)
        self._of_bpf = {check.name for check in bpf_checks()}

    def __call__(self, parts: Any) -> list[Finding]:
        return [found for runner in self._runners for found in self._findings(runner, parts)]

    def _findings(self, runner: CheckRunner[Any], parts: Any) -> list[Finding]:
        context = RunningContext(parts) if runner.check.name in self._of_bpf else parts
        return runner.findings(context, runner.check.run(context))  # type: ignore[arg-type]
