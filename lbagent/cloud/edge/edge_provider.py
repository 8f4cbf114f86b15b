"""Provider `edge`: Services with `midokura.com/load-balancer-type: upnp-igd` get a port mapping at the router."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from lbagent.cloud.edge.edge_balancers import EdgeBalancers
from lbagent.cloud.edge.edge_config import read_edge_config
from lbagent.cloud.provider import ClientBuilder, CloudProvider, LoadBalancer
from lbagent.observe.exposition import MetricFamily
from lbagent.task_failure import log_failure


class EdgeProvider(CloudProvider):
    """Has only balancers."""

    name = "edge"

    def __init__(self, config: str | None) -> None:
        """Raises ConfigError."""
        self._balancers = EdgeBalancers(read_edge_config(config or ""))
        self._polling: asyncio.Task[None] | None = None  # a reference: the loop holds tasks weakly

    async def initialize(self, client_builder: ClientBuilder, stop: asyncio.Event) -> None:
        """Start to poll the router."""
        self._balancers.begin(client_builder)
        self._polling = asyncio.create_task(self._balancers.run(stop), name="poll the gateway")
        self._polling.add_done_callback(log_failure)

    def load_balancer(self) -> LoadBalancer:
        """Return the part for balancers."""
        return self._balancers

    def reload(self, config: str) -> None:
        """Replace the configuration. Raises ConfigError."""
        self._balancers.use(read_edge_config(config))

    def metrics(self) -> Iterator[MetricFamily]:
        """Yield the metrics of the router."""
        text = "Port mappings that Services have at the gateway."
        yield MetricFamily("lbagent_edge_mappings", "gauge", text, [((), self._balancers.count())])
        text = "Whether the gateway answered the last request."
        yield MetricFamily("lbagent_edge_gateway_up", "gauge", text, [((), float(self._balancers.is_up))])
