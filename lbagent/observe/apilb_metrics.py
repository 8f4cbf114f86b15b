"""Metrics of native pools: which servers are up, and how checks end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from lbagent.model.histogram import Histogram
from lbagent.observe.exposition import HistogramFamily, Labels, MetricFamily


class ServerSample(Struct, frozen=True):
    """One server of one instance. `results` counts the checks by how they ended."""

    pool: str
    name: str
    server: str
    up: bool
    transitions: int
    results: Mapping[str, int]


class ApilbSample(Struct, frozen=True):
    """All of them, and how long checks take."""

    servers: tuple[ServerSample, ...]
    seconds: Histogram
    ended: int  # connections to servers that were found down


def families(sample: ApilbSample) -> Iterator[MetricFamily | HistogramFamily]:
    """Yield every metric of native pools."""
    labelled = [(_labels(each), each) for each in sample.servers]
    up = [(labels, each.up) for labels, each in labelled]
    yield MetricFamily("lbagent_apilb_server_up", "gauge", "Whether the server is up.", up)
    results = [
        ((*labels, ("result", word)), count)
        for labels, each in labelled
        for word, count in sorted(each.results.items())
    ]
    yield MetricFamily("lbagent_apilb_checks_total", "counter", "Checks of the server, by how they ended.", results)
    yield HistogramFamily("lbagent_apilb_check_seconds", "How long checks of servers took, in seconds.", sample.seconds)
    transitions = [(labels, each.transitions) for labels, each in labelled]
    text = "Changes of the server from up to down or back."
    yield MetricFamily("lbagent_apilb_transitions_total", "counter", text, transitions)
    text = "Connections of this host that were ended because their server was found down."
    yield MetricFamily("lbagent_apilb_resets_total", "counter", text, [((), sample.ended)])


def _labels(sample: ServerSample) -> Labels:
    return ("pool", sample.pool), ("name", sample.name), ("server", sample.server)
