"""Which clients a Service of type LoadBalancer allows: one function for the agent, `cloud plan` and `cloud run`.

Source: Kubernetes API v1 (loadBalancerSourceRanges), k8s.io/cloud-provider service/helpers (the annotation; the field wins).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lbagent.model.service import CIDR

FIELD = "spec.loadBalancerSourceRanges"
ANNOTATION = "service.beta.kubernetes.io/load-balancer-source-ranges"
MAX_RANGES = 10000


class SourceRanges(Struct, frozen=True):
    """Source ranges of a Service: `texts` of annotation or field, `by_place` those that are ranges, `refused` the others."""

    texts: tuple[str | None, ...] = ()
    of_annotation: bool = False
    by_place: dict[int, CIDR] = {}
    refused: dict[int, str] = {}  # why
    is_cut: bool = False  # whether there are more than MAX_RANGES

    @property
    def ranges(self) -> tuple[CIDR, ...]:
        """The ranges, each once, in order."""
        return tuple(dict.fromkeys(self.by_place.values()))

    @property
    def problems(self) -> tuple[str, ...]:
        """A message with the field or annotation for each rejected value."""
        where = ANNOTATION if self.of_annotation else FIELD
        found = [f"{where}: {reason}" for reason in self.refused.values()]
        return (*found, *[f"{where}: more than {MAX_RANGES} ranges"] * self.is_cut)


def read_source_ranges(field: Sequence[str | None], annotation: str) -> SourceRanges:
    """Return the ranges of field and annotation ('' = missing). The field takes precedence; no entries: all clients are allowed."""
    texts: tuple[str | None, ...] = tuple(field)
    of_annotation = not texts and bool(annotation.strip())
    if of_annotation:
        texts = tuple(text.strip() for text in annotation.split(","))
    by_place: dict[int, CIDR] = {}
    refused: dict[int, str] = {}
    for index, text in enumerate(texts[:MAX_RANGES]):
        if text is None:
            continue
        try:
            by_place[index] = CIDR.parse(text)
        except ValueError as error:
            refused[index] = str(error)
    return SourceRanges(texts, of_annotation, by_place, refused, len(texts) > MAX_RANGES)
