"""The interfaces of a provider of load balancers: the provider, its balancers, and what it gets from the controller.

Source: k8s.io/cloud-provider, cloud.go (behaviour).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from lbagent.cloud.provider_api.provider_errors import NotSupported
from lbagent.cloud.provider_api.provider_parts import Clusters, Instances, InstancesV2, Routes, Zones
from lbagent.cloud.provider_api.provider_records import LoadBalancerStatus, Node, Service
from lbagent.kube.kube_client import KubeClient
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.observe.exposition import MetricFamily

# Stands for the file's name in a factory's ConfigError("FIELD: what is wrong", file=CONFIG, line=LINE)
CONFIG = "--config"


class LoadBalancer(ABC):
    """The balancers of Services. Each call may come again: the second time it changes nothing.

    `owned_annotations` are those of `LoadBalancerStatus.annotations` that go again with the balancer.
    """

    owned_annotations: tuple[str, ...] = ()

    @abstractmethod
    async def get(self, cluster: str, service: Service) -> LoadBalancerStatus | None:
        """Return the status of a Service's balancer; None: there is none."""

    @abstractmethod
    def name(self, cluster: str, service: Service) -> str:
        """Return the name of a Service's balancer; `default_load_balancer_name` is one."""

    @abstractmethod
    async def ensure(self, cluster: str, service: Service, nodes: Sequence[Node]) -> LoadBalancerStatus:
        """Make or change the balancer; return its status. Raises RetryAfter, ImplementedElsewhere, Refusal, or any other error."""

    @abstractmethod
    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Let the balancer send packets to these nodes from now on."""

    @abstractmethod
    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove the balancer and what is left of one; one that is not there is no error."""


class ClientBuilder(Protocol):
    """What the controller offers a provider: a client of the API server, its objects, Events, and a new sync of a Service."""

    @property
    def lb_class(self) -> str:
        """The loadBalancerClass that is served; '': Services without one."""

    @property
    def cluster_name(self) -> str:
        """The cluster's name, as `ensure` has it."""

    @property
    def node_name(self) -> str:
        """The node that this process runs on, '' without --node-name."""

    def client(self) -> KubeClient:
        """Return the client."""

    def snapshot(self) -> ObjectSnapshot:
        """Return every Service and Node, as they were read last."""

    def follow(self, on_changes: Callable[[Sequence[ObjectChange]], None]) -> None:
        """Call a function with changes of Services and Nodes from now on."""

    def sync(self, key: str) -> None:
        """Have `ensure` called for the Service `NAMESPACE/NAME` again."""

    def write_event(self, service: Service, reason: str, text: str, *, warning: bool) -> None:
        """Write an Event about a Service; return at once."""


class CloudProvider(ABC):
    """A provider: its parts, or None for those that it has not."""

    name: str
    has_cluster_id: bool = True

    async def initialize(self, client_builder: ClientBuilder, stop: asyncio.Event) -> None:  # noqa: B027 - most need none
        """Begin: called once, before any part is used and after all objects were read. `stop` is set when it is to end."""

    def load_balancer(self) -> LoadBalancer | None:
        """Return the part that makes balancers."""
        return None

    def instances(self) -> Instances | None:
        """Return the part for machines by name, where there is none that `instances_v2` returns."""
        return None

    def instances_v2(self) -> InstancesV2 | None:
        """Return the part for machines."""
        return None

    def zones(self) -> Zones | None:
        """Return the part for zones. Deprecated."""
        return None

    def clusters(self) -> Clusters | None:
        """Return the part for clusters."""
        return None

    def routes(self) -> Routes | None:
        """Return the part that makes routes."""
        return None

    def reload(self, config: str) -> None:  # noqa: ARG002 - those that can read it override this
        """Take another text of the `--config` file. Raises ConfigError when it is wrong, and changes nothing then."""
        raise NotSupported("it is used after a restart")

    def metrics(self) -> Iterable[MetricFamily]:
        """Return metrics of its own."""
        return ()


Factory = Callable[[str | None], CloudProvider]
