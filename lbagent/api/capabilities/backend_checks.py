"""Metrics of the health checks of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from lbagent.api.checked_backends import CheckedBackends

CAPABILITY: Capability[CheckedBackends] = Capability(
    metrics=(
        Metric(
            "lbagent_health_panic",
            "gauge",
            "Whether more than half of the backends of a Service fail their health check, so that none is quarantined.",
            lambda part: part.in_panic(),
            ("service",),
        ),
        Metric(
            "lbagent_backend_passive_out_total",
            "counter",
            "How often the passive check took the backend out: its flows got no answer.",
            lambda part: part.times_out(),
            ("service", "backend"),
        ),
        Metric(
            "lbagent_backend_check_up",
            "gauge",
            "Whether the health check of the backend succeeds.",
            lambda part: part.up(),
            ("service", "backend"),
            is_large=True,
        ),
    ),
)
