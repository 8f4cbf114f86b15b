"""`lbagent metrics`: the Prometheus text, made of the metrics of every capability that is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import TEXT, Capability, Route

if TYPE_CHECKING:
    from lbagent.api.metrics_text import MetricsText

CAPABILITY: Capability[MetricsText] = Capability(
    routes=(Route("metrics", "GET", "/metrics", TEXT, "Prometheus text", lambda text: text.pieces()),),
)
