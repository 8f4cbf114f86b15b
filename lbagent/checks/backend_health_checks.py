"""Backends that fail their health check (sources/backend_health.py), and Services of which too many do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lbagent.checks.running_agent import RunningAgent
from lbagent.model.check import MAX_RESULTS, Check, Result, Severity

if TYPE_CHECKING:
    from lbagent.sources.backend_health import BackendHealth


def failing_backends(agent: RunningAgent) -> Sequence[BackendHealth]:
    """Return the results of each backend that is down, once for each Service."""
    return [each for each in agent.health.results() if not each.health.up]


def describe_backends(_agent: RunningAgent, found: Sequence[BackendHealth]) -> Iterator[Result]:
    """Name the backend, the Service and the error of the last check."""
    for each in found:
        name, error = each.backend.with_protocol(), each.health.error
        why = error or "the last check succeeded, but not yet enough in a row"
        values = {"backend": name, "service": each.service, "type": each.type, "why": why}
        yield Result(f"{each.service} {name}", values)


def services_in_panic(agent: RunningAgent) -> Iterator[Result]:
    """Report each Service of which more than half of the backends fail."""
    for number, service in enumerate(sorted(agent.loop.panics)):
        if number == MAX_RESULTS:
            return
        yield Result(service, {"service": service})


CHECKS = (
    Check(
        "backend-check-fails",
        "whether backends pass the health check of their Service",
        failing_backends,
        "backend {backend} of {service} fails its health check ({type}): {why}",
        "see what listens there, and whether a firewall is between; `lbagent backend get {backend}`",
        severity=Severity.DEGRADED,
        describe=describe_backends,
        more="{count} more backends fail their health check",
    ),
    Check(
        "health-panic",
        "whether so many backends of a Service fail their health check that none is quarantined",
        services_in_panic,
        "more than half of the backends of {service} fail their health check: none of them is quarantined",
        "see whether this node reaches them, and whether `lbagent.io/health-check` fits the server; `lbagent backend list -o wide`",
        severity=Severity.DEGRADED,
    ),
)
