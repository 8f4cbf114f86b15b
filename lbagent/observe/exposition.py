"""Prometheus text exposition 0.0.4: metric families to text, in pieces.

Own writer instead of prometheus-client: that library costs 4 MiB of resident memory and keeps an object per label set, while
every number here already is in a BPF map or in the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

_PIECE_LINES = 500  # some 64 KiB: between two pieces the event loop serves other requests

Labels = tuple[tuple[str, str], ...]


class MetricFamily(Struct, frozen=True):
    """One metric with all its samples."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Iterable[tuple[Labels, float]]


def render(families: Iterable[MetricFamily]) -> Iterator[str]:
    """Yield the exposition in pieces; families without a sample are left out."""
    lines: list[str] = []
    for family in families:
        head = [f"# HELP {family.name} {family.help}\n", f"# TYPE {family.name} {family.kind}\n"]
        for labels, value in family.samples:
            lines += head
            head = []
            lines.append(f"{family.name}{_labels(labels)} {_number(value)}\n")
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
