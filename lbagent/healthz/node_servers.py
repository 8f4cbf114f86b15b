"""The ports of a node in a cluster: /healthz, /livez and /readyz, the metrics, and each Service's health check node port.

A port that another process has (kube-proxy, before its removal) does not stop the agent: it is reported as a problem, and retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from lbagent.config import Config
from lbagent.healthz.proxy_health import ProxyHealth, SyncProgress
from lbagent.healthz.service_health import ServiceHealthServers
from lbagent.http.http_server import Handler
from lbagent.http.listeners import BIND_RETRY_DELAY_S, Listeners
from lbagent.model.address import L3n4Addr
from lbagent.model.family import Family
from lbagent.objects.object_event import EventSink
from lbagent.objects.records import KUBE, Node
from lbagent.objects.source import Source
from lbagent.sync.loop import SyncLoop
from lbagent.sync.target_protocol import Target
from lbagent.targets.data_plane import ShownState

log = logging.getLogger(__name__)
EVERY_ADDRESS = tuple(family.unspecified for family in Family)


class NodeServers:
    """Opens, updates and closes these ports."""

    def __init__(
        self,
        config: Config,
        loop: SyncLoop,
        plane: ShownState,
        targets: Sequence[Target],
        sources: Sequence[Source],
        node_port_addresses: Callable[[], Sequence[bytes] | None] = lambda: None,
        events: Sequence[EventSink] = (),
        why_not_ready: Callable[[], str] = lambda: "not started",
    ) -> None:
        """`targets` put the States of `plane` in force.

        `node_port_addresses` returns the addresses of --nodeport-addresses, None for all of the node's. `events`
        receives health check node ports that cannot be opened. `why_not_ready`: as in ProxyHealth.
        """
        self._loop, self._plane = loop, plane
        self._node_name = config.name_of_node
        self._opens_service_ports = not config.shadow  # the proxy of the node has them
        self._api = next((source for source in sources if source.name == KUBE), None)
        self._runners = [runner for runner in loop.runners if runner.target in targets]
        self.health = ProxyHealth(self._progress, self._is_eligible, why_not_ready)
        self.services = ServiceHealthServers(
            self.health.is_healthy,
            lambda: EVERY_ADDRESS if (found := node_port_addresses()) is None else tuple(found),
            events,
        )
        self._healthz = Listeners(self.health.answer)
        self._healthz_addresses = [L3n4Addr.parse(text) for text in config.healthz_listen_addresses]
        self._metrics_addresses = [L3n4Addr.parse(text) for text in config.metrics_listen_addresses]
        self._metrics: Listeners | None = None

    async def run(self, metrics: Handler) -> None:
        """Serve until cancelled, then close the ports; `metrics` answers at the metrics port."""
        self._metrics = Listeners(metrics)
        try:
            while True:
                state = self._plane.state
                await self._healthz.listen(self._healthz_addresses)
                await self._metrics.listen(self._metrics_addresses)
                if self._opens_service_ports:
                    await self.services.update(state)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BIND_RETRY_DELAY_S):
                        await self._plane.changed_from(state.generation)
        finally:
            for listeners in (self._healthz, self._metrics, self.services):
                await listeners.close()

    def problems(self) -> Iterator[tuple[str, str, bool]]:
        """Yield (port, why it is not open, whether it belongs to a Service)."""
        for what, listeners in (("/healthz", self._healthz), ("metrics", self._metrics)):
            for address, why in (listeners.problems if listeners else {}).items():
                yield f"{what} {address}", why, False
        for name, address, why in self.services.problems():
            yield f"health check node port of {name} {address}", why, True

    def _progress(self) -> SyncProgress:
        """Return the progress of the target that is furthest behind."""
        in_force = [runner.in_force_at for runner in self._runners]
        pending = [runner.pending_since for runner in self._runners if runner.pending_since is not None]
        return SyncProgress(min(in_force), min(pending, default=None))

    def _is_eligible(self) -> bool:
        """Return whether the node should get traffic: it is not being removed, and the API server has it."""
        node = self._loop.inbox.store.get("Node", self._node_name)
        if isinstance(node, Node):
            return not node.leaves
        return self._api is None or not self._api.trusted
