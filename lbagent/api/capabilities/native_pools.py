"""`apilb status`: the instances of native mode that this host serves (--apilb)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbagent.api.capability import Capability, Route
from lbagent.observe.metric import LabelledValues, Metric

if TYPE_CHECKING:
    from lbagent.apilb.native.pool_rows import ApilbSample, NativePools


def _checks(sample: ApilbSample) -> LabelledValues:
    for each in sample.servers:
        for result, count in sorted(each.results.items()):
            yield (*each.names, result), count


SERVER_LABELS = ("pool", "name", "server")
METRICS: tuple[Metric[ApilbSample], ...] = (
    Metric(
        "lbagent_apilb_server_up",
        "gauge",
        "Whether the server is up.",
        lambda sample: ((each.names, each.up) for each in sample.servers),
        SERVER_LABELS,
    ),
    Metric(
        "lbagent_apilb_checks_total",
        "counter",
        "Checks of the server, by how they ended.",
        _checks,
        (*SERVER_LABELS, "result"),
    ),
    Metric(
        "lbagent_apilb_check_seconds",
        "histogram",
        "How long checks of servers took, in seconds.",
        lambda sample: sample.seconds,
    ),
    Metric(
        "lbagent_apilb_transitions_total",
        "counter",
        "Changes of the server from up to down or back.",
        lambda sample: ((each.names, each.transitions) for each in sample.servers),
        SERVER_LABELS,
    ),
    Metric(
        "lbagent_apilb_resets_total",
        "counter",
        "Connections of this host that were ended because their server was found down.",
        lambda sample: sample.ended,
    ),
)
CAPABILITY: Capability[NativePools] = Capability(
    routes=(
        Route(
            "apilb",
            "GET",
            "/v1/apilb",
            "lbagent.apilb.native.pool_rows:ApilbRow",
            "the instances of native mode, each with its servers: up or down, since when, the last check, connections of this "
            "host; 404 without `--apilb`",
            lambda native: native.rows(),
            is_list=True,
        ),
    ),
    metrics=METRICS,
    subject=lambda native: native.sample(),
    off="this agent serves no native pools: it was started without --apilb",
)
