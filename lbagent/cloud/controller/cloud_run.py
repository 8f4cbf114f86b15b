"""`lbagent cloud run`: the composition. Services are read only while this process leads, and all of them at the start of each term.

So a leader starts from what the previous leader wrote last; a new provider object has no state of an earlier term.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

from lbagent.cloud import providers
from lbagent.cloud.controller.cloud_settings import CloudSettings, listen_address
from lbagent.cloud.controller.controller_metrics import ControllerMetrics
from lbagent.cloud.controller.controller_names import SERVICE_LB
from lbagent.cloud.controller.http_answers import HttpAnswers
from lbagent.cloud.controller.informers import Informers
from lbagent.cloud.controller.nodes.node_controllers import NodeControllers
from lbagent.cloud.controller.service_controller import ServiceController
from lbagent.cloud.controller.service_writer import ServiceWriter
from lbagent.cloud.controller.work_queue import WorkQueue
from lbagent.cloud.provider import CloudProvider, NotSupported
from lbagent.cloud.provider_api.provider_records import Service
from lbagent.errors import ConfigError
from lbagent.kube.event_writer import EventLimits, EventWriter
from lbagent.kube.kube_client import KubeClient
from lbagent.kube.leader_election import LeaderElection
from lbagent.objects.object_event import ObjectEvent
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.observe import log as logs
from lbagent.observe.exposition import HistogramFamily, MetricFamily
from lbagent.textfile.followed_file import FollowedFile

log = logging.getLogger(__name__)
COMPONENT = "service-controller"
EVENTS = EventLimits(burst=2000, refill_s=0.05, waiting=10_000)
WRITE_S = 10.0  # timeout of a request, without an election


def run_cloud(settings: CloudSettings) -> None:
    """Run the controller until SIGTERM or SIGINT. Raises ConfigError before the first request."""
    settings.check()
    factory = providers.provider(settings.provider).load()
    file = FollowedFile(settings.config)
    providers.make_provider(settings.provider, factory, file.text, settings.config)
    logs.setup(settings.log_format)
    logs.take_stderr()
    run = CloudRun(
        settings, lambda: providers.make_provider(settings.provider, factory, file.text, settings.config), file
    )
    asyncio.run(run.run())


class CloudRun:
    """One process."""

    def __init__(self, settings: CloudSettings, make_provider: Callable[[], CloudProvider], file: FollowedFile) -> None:
        self._settings, self._make_provider, self._file = settings, make_provider, file
        self._metrics = ControllerMetrics()
        self._provider: CloudProvider | None = None  # of the present term

    async def run(self) -> None:
        """Run until a signal ends it."""
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        serving, stopping = asyncio.create_task(self._serve()), asyncio.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            log.info("stopping; addresses stay as they are")
            serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving

    async def _serve(self) -> None:
        settings, client = self._settings, KubeClient(self._settings.kube)
        node = settings.node_name or os.uname().nodename
        election = LeaderElection(
            client,
            settings.namespace,
            f"{node}_{secrets.token_hex(8)}",
            settings.lease_duration_s,
            lease=settings.lease_name,
        )
        log.info("cloud controller starts", extra={"provider": settings.provider, "node": node})
        leading: Callable[[], bool] = (lambda: election.is_leading) if settings.leader_elect else (lambda: True)
        answers = HttpAnswers(
            listen_address("", settings.health_address) if settings.health_address else None,
            listen_address("", settings.metrics_address) if settings.metrics_address else None,
            leading,
            self._families,
        )
        term: Callable[[], Awaitable[None]]
        if settings.leader_elect:
            term = lambda: self._term(client, node, election.may_write, election.write_s)  # noqa: E731
        else:
            term = lambda: self._term(client, node, lambda: True, WRITE_S)  # noqa: E731
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(answers.run())
                tasks.create_task(self._file.follow(self._reload))
                await (election.lead(term) if settings.leader_elect else term())
        finally:
            await client.close()

    async def _term(self, client: KubeClient, node: str, may_write: Callable[[], bool], write_s: float) -> None:
        """Lead: read everything, then work, until cancelled."""
        stop = asyncio.Event()
        try:
            self._provider = self._make_provider()
            await Term(self._settings, client, node, self._provider, self._metrics, may_write, write_s).run(stop)
        finally:
            stop.set()
            self._provider = None

    def _reload(self, text: str) -> None:
        with providers.with_file_name(self._settings.config):
            self._reload_provider(text)

    def _reload_provider(self, text: str) -> None:
        if self._provider is None:
            self._make_provider_of(text)
            return
        try:
            self._provider.reload(text)
        except NotSupported as error:
            raise ConfigError(f"provider {self._settings.provider} does not reload it: {error}") from None

    def _make_provider_of(self, text: str) -> None:
        """Check the provider's file, also while another process leads. Raises ConfigError."""
        factory = providers.provider(self._settings.provider).load()
        providers.make_provider(self._settings.provider, factory, text, self._settings.config)

    def _families(self) -> Iterator[MetricFamily | HistogramFamily]:
        yield from self._metrics.families()
        if self._provider is not None:
            yield from self._provider.metrics()


class Term:
    """One term of leading; a provider gets it as its client_builder."""

    def __init__(
        self,
        settings: CloudSettings,
        client: KubeClient,
        node: str,
        provider: CloudProvider,
        metrics: ControllerMetrics,
        may_write: Callable[[], bool],
        write_s: float,
    ) -> None:
        self._settings, self._client, self._provider = settings, client, provider
        self._informers = Informers(client, settings.timing)
        self._metrics = metrics
        self._queue = WorkQueue(settings.retry_base_s, settings.retry_max_s)
        self._events = EventWriter(
            client, node, component=COMPONENT, limits=EVENTS, counts=True, is_busy=lambda: not self._queue.is_idle
        )
        self._writer = ServiceWriter(client, self._informers, may_write, write_s)
        self._node_controllers = NodeControllers(settings, client, node, self._informers, may_write, write_s)
        self._controller: ServiceController | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the server and work, until cancelled."""
        settings = self._settings
        is_wanted = settings.runs(SERVICE_LB)
        balancers = self._provider.load_balancer() if is_wanted else None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informers.run())
            tasks.create_task(self._events.run())
            if balancers is not None:
                self._controller = ServiceController(
                    balancers,
                    self._informers,
                    self._writer,
                    self._queue,
                    self._metrics,
                    write_event=lambda *event: self.write_event(*event[:3], warning=event[3]),
                    cluster=settings.cluster_name,
                    lb_class=settings.lb_class,
                )
                self._informers.follow(self._controller.take)
            elif is_wanted:
                log.warning("the provider has no load balancers: Services stay as they are")
            await self._informers.listed()
            await self._provider.initialize(self, stop)
            if self._controller is not None:
                tasks.create_task(self._controller.run(settings.concurrent_syncs))
            tasks.create_task(self._node_controllers.run(self._provider))

    # --- the interface for providers ---

    @property
    def lb_class(self) -> str:
        """The served loadBalancerClass."""
        return self._settings.lb_class

    @property
    def cluster_name(self) -> str:
        """The cluster's name."""
        return self._settings.cluster_name

    @property
    def node_name(self) -> str:
        """The node of --node-name."""
        return self._settings.node_name

    def client(self) -> KubeClient:
        """Return the client."""
        return self._client

    def snapshot(self) -> ObjectSnapshot:
        """Return every Service and Node."""
        return self._informers.snapshot()

    def follow(self, on_changes: Callable[[Sequence[ObjectChange]], None]) -> None:
        """Register a function that gets changes."""
        self._informers.follow(on_changes)

    def sync(self, key: str) -> None:
        """Queue a Service for a sync."""
        if self._controller is not None:
            self._controller.sync(key)

    def write_event(self, service: Service, reason: str, text: str, *, warning: bool) -> None:
        """Write an Event about a Service."""
        self._events.write(ObjectEvent("Service", service.key, reason, text, warning, service.uid))
