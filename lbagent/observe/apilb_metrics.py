"""Metrics of native pools: which servers are up, and how checks end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from lbagent.model.histogram import Histogram
from lbagent.observe.exposition import Metric


class ServerSample(Struct, frozen=True):
    """One server of one instance. `results` counts the checks by how they ended."""

    pool: str
    name: str
    server: str
    up: bool
    transitions: int
    results: Mapping[str, int]

    @property
    def names(self) -> tuple[str, str, str]:
        """The values of SERVER_LABELS."""
        return self.pool, self.name, self.server


class ApilbSample(Struct, frozen=True):
    """All of them, and how long checks take."""

    servers: tuple[ServerSample, ...]
    seconds: Histogram
    ended: int  # connections to servers that were found down


def _checks(sample: ApilbSample) -> Iterator[tuple[tuple[str, ...], float]]:
    for each in sample.servers:
        for result, count in sorted(each.results.items()):
            yield (*each.names, result), count


SERVER_LABELS = ("pool", "name", "server")
APILB_METRICS: tuple[Metric[ApilbSample], ...] = (
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
