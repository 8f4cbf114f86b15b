"""The data planes of `--renderer`: which ones have a State in force, what failed, how long they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lbagent.sync.runner import TargetRunner

METRICS: tuple[Metric[Sequence[TargetRunner]], ...] = (
    Metric(
        "lbagent_renderer_active",
        "gauge",
        "Whether the data plane of --renderer has put a state in force and the last one did not fail.",
        lambda runners: (((x.target.name,), x.target.ready.is_set() and x.failure is None) for x in runners),
        ("renderer",),
    ),
    Metric(
        "lbagent_renderer_errors_total",
        "counter",
        "Attempts of the data plane that failed as a whole; each is repeated.",
        lambda runners: (((x.target.name,), x.failures) for x in runners),
        ("renderer",),
    ),
    Metric(
        "lbagent_renderer_apply_seconds",
        "gauge",
        "Seconds that the data plane took to put the last state in force.",
        lambda runners: (((x.target.name,), x.applied_s) for x in runners),
        ("renderer",),
    ),
)
CAPABILITY: Capability[Sequence[TargetRunner]] = Capability(metrics=METRICS)
