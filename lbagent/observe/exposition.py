"""Prometheus text exposition 0.0.4: metric families to text, in pieces.

Own writer instead of prometheus-client: that library costs 4 MiB of resident memory and keeps an object per label set, while
every number here already is in a BPF map or in the agent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

from lbagent.model.histogram import Histogram
from lbagent.observe.metric import Metric, Subject

_PIECE_LINES = 500  # some 64 KiB: between two pieces the event loop serves other requests

Labels = tuple[tuple[str, str], ...]


class MetricFamily(Struct, frozen=True):
    """One metric with all its samples."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Iterable[tuple[Labels, float]]


class HistogramFamily(Struct, frozen=True):
    """One metric of histograms, by their labels."""

    name: str
    help: str
    histograms: Iterable[tuple[Labels, Histogram]]
    kind: Literal["histogram"] = "histogram"


def family_of(metric: Metric[Subject], subject: Subject) -> MetricFamily | HistogramFamily:
    """Return the samples that a metric has now."""
    value = metric.value(subject)
    if metric.kind == "histogram":
        return HistogramFamily(metric.name, metric.help, _labelled(metric.labels, value, Histogram))
    return MetricFamily(metric.name, metric.kind, metric.help, _labelled(metric.labels, value, (int, float)))


def _labelled(labels: tuple[str, ...], value: Any, single: type | tuple[type, ...]) -> Iterator[tuple[Labels, Any]]:
    """Yield (labels, sample) of a value: a `single` one without labels, several by the words of their labels, or none."""
    if isinstance(value, single):
        yield (), value
        return
    for words, sample in value or ():
        yield tuple(zip(labels, words, strict=True)), sample


def _samples(family: MetricFamily | HistogramFamily) -> Iterator[tuple[str, Labels, float]]:
    """Yield (name, labels, value) of each line."""
    if isinstance(family, MetricFamily):
        for labels, value in family.samples:
            yield family.name, labels, value
        return
    for labels, histogram in family.histograms:
        for bound, count in histogram.cumulative():
            yield f"{family.name}_bucket", (*labels, ("le", "+Inf" if bound == math.inf else _number(bound))), count
        yield f"{family.name}_sum", labels, histogram.sum
        yield f"{family.name}_count", labels, histogram.count


def render(families: Iterable[MetricFamily | HistogramFamily]) -> Iterator[str]:
    """Yield the exposition in pieces; families without a sample are left out."""
    lines: list[str] = []
    for family in families:
        head = [f"# HELP {family.name} {family.help}\n", f"# TYPE {family.name} {family.kind}\n"]
        for name, labels, value in _samples(family):
            lines += head
            head = []
            lines.append(f"{name}{_labels(labels)} {_number(value)}\n")
            if len(lines) >= _PIECE_LINES:
                yield "".join(lines)
                lines = []
    if lines:
        yield "".join(lines)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
