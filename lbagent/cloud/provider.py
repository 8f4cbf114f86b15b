"""The plug-in API of providers of load balancers: everything that a plug-in imports.

A plug-in is an entry point of the group `lbagent.cloud_providers`; its value is a factory, `factory(config: str | None) ->
CloudProvider`, which gets the text of the `--config` file (None without one) and raises ConfigError for a wrong one, with
`line` and, in the place of the file's name, `file=CONFIG`. The functions of a provider run on the controller's event loop: what
blocks belongs in a thread. Source: k8s.io/cloud-provider, cloud.go (behaviour).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from lbagent.cloud.provider_errors import (
    DiskNotFound,
    ImplementedElsewhere,
    InstanceNotFound,
    NotSupported,
    Refusal,
    RetryAfter,
)
from lbagent.cloud.provider_parts import (
    Clusters,
    InstanceMetadata,
    Instances,
    InstancesV2,
    PVLabeler,
    Route,
    Routes,
    Zone,
    Zones,
)
from lbagent.cloud.provider_records import (
    Ingress,
    IngressPort,
    LoadBalancerStatus,
    Node,
    Service,
    ServicePort,
    same_ingress,
)
from lbagent.cloud.provider_rules import (
    default_load_balancer_name,
    health_check,
    needs_update,
    node_included,
    source_ranges,
)
from lbagent.errors import ConfigError
from lbagent.kube.kube_client import KubeClient
from lbagent.objects.records import ObjectChange, ObjectSnapshot
from lbagent.observe.exposition import MetricFamily

__all__ = [
    "CONFIG", "ClientBuilder", "CloudProvider", "Clusters", "ConfigError", "DiskNotFound", "Factory", "ImplementedElsewhere",
    "Ingress", "IngressPort", "InstanceMetadata", "InstanceNotFound", "Instances", "InstancesV2", "LoadBalancer",
    "LoadBalancerStatus", "Node", "NotSupported", "PVLabeler", "Refusal", "RetryAfter", "Route", "Routes", "Service",
    "ServicePort", "Zone", "Zones", "default_load_balancer_name", "health_check", "needs_update", "node_included",
    "same_ingress", "source_ranges",
]  # fmt: skip
CONFIG = (
    "--config"  # stands for the file's name in a factory's ConfigError("FIELD: what is wrong", file=CONFIG, line=LINE)
)


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
    """What the controller has for a provider: a client of the API server, its objects, Events, and another look at a Service."""

    @property
    def lb_class(self) -> str:
        """The loadBalancerClass that is served; '': Services without one."""

    @property
    def cluster_name(self) -> str:
        """The cluster's name, as `ensure` has it."""

    @property
    def node_name(self) -> str:
        """The node that this process runs on, '' where --node-name does not say it."""

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
        """Return the part that knows machines by name, where there is none that `instances_v2` returns."""
        return None

    def instances_v2(self) -> InstancesV2 | None:
        """Return the part that knows machines."""
        return None

    def zones(self) -> Zones | None:
        """Return the part that knows zones. Deprecated."""
        return None

    def clusters(self) -> Clusters | None:
        """Return the part that knows clusters."""
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
