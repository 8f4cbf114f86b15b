"""The text of `/metrics`: the metrics of the bound capabilities in the order of their table, the large ones last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from lbagent.api.capability import Bound, Capability
from lbagent.observe.exposition import HistogramFamily, MetricFamily, family_of, render
from lbagent.observe.metric import Metric


class MetricsText:
    """Reads every metric at each scrape."""

    def __init__(self, bound: Sequence[Bound]) -> None:
        self._bound = bound

    def pieces(self) -> Iterator[str]:
        """Return the text. The small metrics are read before it returns: other tasks run between two pieces. Raises KernelError."""
        subjects = [(capability, capability.subject(part)) for capability, part in self._bound]
        small = list(render(_families(subjects, is_large=False)))
        return chain(small, render(_families(subjects, is_large=True)))


def _families(
    subjects: Iterable[tuple[Capability[Any], Any]], *, is_large: bool
) -> Iterator[MetricFamily | HistogramFamily]:
    return (
        family_of(metric, subject)
        for capability, subject in subjects
        for metric in capability.metrics
        if metric.is_large is is_large
    )


def every_metric(capabilities: Iterable[Capability[Any]]) -> list[Metric[Any]]:
    """Return the metrics of capabilities in the order of the text."""
    metrics = [metric for capability in capabilities for metric in capability.metrics]
    return sorted(metrics, key=lambda metric: metric.is_large)
