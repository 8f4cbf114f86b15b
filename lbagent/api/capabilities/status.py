"""`lbagent status`: how the agent is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import lbagent
from lbagent.api.capability import Capability, Route
from lbagent.observe.metric import Metric, by_word

if TYPE_CHECKING:
    from lbagent.api.agent_status import AgentStatus


def _resident_bytes() -> int:
    """Return how much memory this process has."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


METRICS: tuple[Metric[AgentStatus], ...] = (
    Metric("lbagent_build_info", "gauge", "Always 1.", lambda _: (((lbagent.__version__,), 1),), ("version",)),
    Metric(
        "lbagent_ready",
        "gauge",
        "Whether the first full state is in the kernel, and no self-test fails.",
        lambda status: status.ready,
    ),
    Metric(
        "lbagent_condition",
        "gauge",
        "Conditions that hold now, by name; `lbagent status` names them and what to do.",
        lambda status: by_word(status.conditions.counts() if status.started else {}),
        ("name",),
    ),
    Metric(
        "lbagent_conditions",
        "gauge",
        "Conditions that hold now, by severity: degraded (of objects) or fault (of the node).",
        lambda status: by_word(status.conditions.severities() if status.started else {}),
        ("severity",),
    ),
    Metric("process_resident_memory_bytes", "gauge", "Resident memory of the agent.", lambda _: _resident_bytes()),
    Metric("process_cpu_seconds_total", "counter", "CPU time used, in seconds.", lambda _: _cpu_s()),
    Metric(
        "process_start_time_seconds",
        "gauge",
        "Start of the agent, in seconds since the epoch.",
        lambda status: status.started_at,
    ),
)
CAPABILITY: Capability[AgentStatus] = Capability(
    routes=(
        Route(
            "status",
            "GET",
            "/v1/status",
            "lbagent.api.agent_status:Status",
            "how the agent is",
            lambda status: status.now(),
        ),
    ),
    metrics=METRICS,
)
