"""What the self-test found (targets/bpf/self_test.py)."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.model.check import Check, Result, Severity
from lbagent.targets.bpf.checks.running_context import RunningContext


def selftest_failed(context: RunningContext) -> Iterator[Result]:
    """Report what is wrong with the programs in force, and why packets could not be tested."""
    found = context.plane.self_test
    if found.fault:
        yield Result("programs", {"fault": found.fault})
    if found.without:
        text = f"the self-test compares tail calls only, as its programs could not be loaded: {found.without}"
        remedy = "packets are served; `lbagent explain` fails for the same reason"
        yield Result("packets", text=text, remedy=remedy, severity=Severity.DEGRADED)


CHECKS = (
    Check(
        "selftest-failed",
        "the self-test: tail calls, and packets to frontends",
        selftest_failed,
        "this node may not forward: {fault}; `/readyz` answers 503",
        "restart the agent: where a tail call is missing it loads the programs again; then `lbagent verify --repair`",
    ),
)
