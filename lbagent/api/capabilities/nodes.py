"""Metrics of the nodes of the cluster that are dead (--node-liveness)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lbagent.api.capability import Capability
from lbagent.observe.metric import Metric

if TYPE_CHECKING:
    from lbagent.liveness.node_liveness import NodeLiveness


def _dead(liveness: NodeLiveness) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the nodes that this one observes, and the dead ones: all of 1,000 nodes at each of them were a million series."""
    for node in sorted(liveness.observed | liveness.dead):
        yield (node,), node in liveness.dead


CAPABILITY: Capability[NodeLiveness] = Capability(
    metrics=(
        Metric(
            "lbagent_node_dead",
            "gauge",
            "Whether a node is dead, of those that this node observes and the dead ones: its endpoints take no new flows.",
            _dead,
            ("node",),
        ),
        Metric(
            "lbagent_node_missed",
            "gauge",
            "Observed nodes that do not answer this node now.",
            lambda liveness: len(liveness.missed()),
        ),
        Metric(
            "lbagent_node_panic",
            "gauge",
            "Whether so many nodes do not answer that none of them is declared dead.",
            lambda liveness: liveness.is_panic,
        ),
    ),
)
