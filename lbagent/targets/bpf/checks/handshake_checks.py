"""Backends that refuse connections, or do not answer: what the flows tell (targets/bpf/handshake_watch.py)."""

from __future__ import annotations

from collections.abc import Iterator

from lbagent.model.check import MAX_RESULTS, Check, Result, Severity
from lbagent.targets.bpf.checks.running_context import RunningContext


def backend_refuses(context: RunningContext) -> Iterator[Result]:
    """Report each backend whose last three timed handshakes were refused or got no answer."""
    for number, (backend, count, found) in enumerate(context.plane.handshake_watch.failing()):
        if number == MAX_RESULTS:
            return
        name = backend.address.with_protocol()
        values = {
            "backend": name, "count": count, "refused": found.refused, "lost": found.lost,
            "all": found.done + found.refused + found.lost,
        }  # fmt: skip
        yield Result(name, values)


CHECKS = (
    Check(
        "backend-refuses",
        "whether backends accept TCP connections, by the flows",
        backend_refuses,
        "backend {backend} refused or did not answer its last {count} handshakes that were timed: of {all} it refused {refused} and"
        " did not answer {lost}",
        "see what listens there, and whether a firewall is between; `lbagent backend get {backend}`",
        severity=Severity.DEGRADED,
    ),
)
