"""The interfaces of a provider of load balancers: the provider, its balancers, and the controller's functions for it.

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

# Placeholder for the file's name in a factory's ConfigError("FIELD: what is wrong", file=CONFIG, line=LINE)
CONFIG = "--config"


class LoadBalancer(ABC):
    """The balancers of Services. Each call is idempotent.

    `owned_annotations` are those of `LoadBalancerStatus.annotations` that are removed with the balancer.
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
        """Create or change the balancer; return its status. Raises RetryAfter, ImplementedElsewhere, Refusal, or another error."""

    @abstractmethod
    async def update(self, cluster: str, service: Service, nodes: Sequence[Node]) -> None:
        """Replace the nodes to which the balancer sends packets."""

    @abstractmethod
    async def ensure_deleted(self, cluster: str, service: Service) -> None:
        """Remove the balancer and its remains; a missing one is not an error."""


class ClientBuilder(Protocol):
    """The controller's interface for a provider: a client of the API server, its objects, Events, and a new sync of a Service."""

    @property
    def lb_class(self) -> str:
        """The served loadBalancerClass; '': Services without one."""

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
        """Register a function that gets changes of Services and Nodes."""

    def sync(self, key: str) -> None:
        """Queue another call of `ensure` for the Service `NAMESPACE/NAME`."""

    def write_event(self, service: Service, reason: str, text: str, *, warning: bool) -> None:
        """Write an Event about a Service; return at once."""


class CloudProvider(ABC):
    """A provider: its parts, or None for those that it lacks."""

    name: str
    has_cluster_id: bool = True

    async def initialize(self, client_builder: ClientBuilder, stop: asyncio.Event) -> None:  # noqa: B027 - most need none
        """Start: called once, after all objects were read and before any part is used. `stop` is set when it must end."""

    def load_balancer(self) -> LoadBalancer | None:
        """Return the part for balancers."""
        return None

    def instances(self) -> Instances | None:
        """Return the part for machines by name, used if `instances_v2` returns None."""
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
        """Return the part for routes."""
        return None

    def reload(self, config: str) -> None:  # noqa: ARG002 - those that can read it override this
        """Apply another text of the `--config` file. Raises ConfigError for a wrong one, and changes nothing then."""
        raise NotSupported("it takes effect after a restart")

    def metrics(self) -> Iterable[MetricFamily]:
        """Return its own metrics."""
        return ()


Factory = Callable[[str | None], CloudProvider]
