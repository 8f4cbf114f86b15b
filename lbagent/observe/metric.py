"""Metric: the row of one metric. Standard library only: the command line imports rows, too.

exposition.py writes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from lbagent.model.histogram import Histogram

Subject = TypeVar("Subject")
LabelledValues = Iterable[tuple[tuple[str, ...], float]]
LabelledHistograms = Iterable[tuple[tuple[str, ...], "Histogram"]]


class Metric(Generic[Subject]):
    """One metric: name, type, help text, and the function that makes its samples."""

    def __init__(
        self,
        name: str,
        kind: Literal["counter", "gauge", "histogram"],
        help: str,  # noqa: A002 - Prometheus' word
        value: Callable[[Subject], float | Histogram | LabelledValues | LabelledHistograms | None],
        labels: tuple[str, ...] = (),
        *,
        is_large: bool = False,
    ) -> None:
        """`value` returns a number or a histogram, several with the values of `labels`, or None where there is nothing to show.

        `is_large`: it has a sample for each frontend or backend; these metrics follow the small ones.
        """
        self.name, self.kind, self.help, self.value, self.labels = name, kind, help, value, labels
        self.is_large = is_large


def by_word(values: Mapping[str, float]) -> LabelledValues:
    """Yield values by the one label that is their key."""
    return (((word,), value) for word, value in values.items())
