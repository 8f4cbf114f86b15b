"""The metrics of the service controller, with the names of Kubernetes' own."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lbagent.model.histogram import Histogram
from lbagent.observe.exposition import HistogramFamily, MetricFamily

PREFIX = "service_controller_"
BOUNDS_S = tuple(2.0**power for power in range(14))  # 1 s to 8192 s. Source: cloud-provider's metrics.go (behaviour)


class ControllerMetrics:
    """Counters of one process."""

    def __init__(self) -> None:
        self.syncs = 0  # of a Service's balancer
        self.node_sync_errors = 0
        self.node_syncs, self.host_updates = Histogram(BOUNDS_S), Histogram(BOUNDS_S)
        self._node_sync_of: set[str] = set()  # Services whose balancers do not have the latest change of nodes yet
        self._node_sync_began = 0.0

    def begin_node_sync(self, keys: set[str]) -> None:
        """Record that nodes changed, and which Services are affected."""
        if not self._node_sync_of:
            self._node_sync_began = time.monotonic()
        self._node_sync_of |= keys

    def reached(self, key: str) -> None:
        """Record that a Service's balancer has the current nodes."""
        if key in self._node_sync_of:
            self._node_sync_of.discard(key)
            if not self._node_sync_of:
                self.node_syncs.observe(time.monotonic() - self._node_sync_began)

    def families(self) -> Iterator[MetricFamily | HistogramFamily]:
        """Yield every metric."""
        text = "Syncs of a Service's load balancer."
        yield MetricFamily(f"{PREFIX}loadbalancer_sync_total", "counter", text, [((), self.syncs)])
        text = "Changes of nodes that the provider of a load balancer failed to apply."
        yield MetricFamily(f"{PREFIX}nodesync_error_total", "counter", text, [((), self.node_sync_errors)])
        text = "Seconds from a change of nodes until every load balancer had it."
        yield HistogramFamily(f"{PREFIX}nodesync_latency_seconds", text, [((), self.node_syncs)])
        text = "Seconds that the update of a load balancer's nodes took."
        yield HistogramFamily(f"{PREFIX}update_loadbalancer_host_latency_seconds", text, [((), self.host_updates)])
