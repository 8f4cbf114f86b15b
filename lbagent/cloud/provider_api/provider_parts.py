"""The parts of a provider other than balancers: machines, zones, clusters, routes.

Methods that are not abstract raise NotSupported by default. Source: k8s.io/cloud-provider, cloud.go (behaviour).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from lbagent.cloud.provider_api.provider_errors import NotSupported
from lbagent.cloud.provider_api.provider_records import Node

Addresses = tuple[tuple[str, str], ...]  # pairs of type (InternalIP, ExternalIP, HostName, ...) and address


class InstanceMetadata(Struct, frozen=True):
    """A provider's data of an instance; `provider_id` is `PROVIDER://ID`.

    `additional_labels` of Kubernetes' own namespaces are left out, and none replaces a label that the Node has.
    """

    provider_id: str = ""
    instance_type: str = ""
    addresses: Addresses = ()
    zone: str = ""
    region: str = ""
    additional_labels: tuple[tuple[str, str], ...] = ()


class InstancesV2(ABC):
    """The machines of Nodes. Raise an error if the answer is unknown, not False: a Node whose instance does not exist is deleted.

    `node.provider_id` identifies the instance; if it is '', the name and the other fields of the Node do.
    """

    @abstractmethod
    async def exists(self, node: Node) -> bool:
        """Return whether the instance exists, running or not."""

    @abstractmethod
    async def is_shut_down(self, node: Node) -> bool:
        """Return whether the instance is off."""

    @abstractmethod
    async def metadata(self, node: Node) -> InstanceMetadata | None:
        """Return the data of the instance; None: ignore the Node."""


class Instances(ABC):
    """The machines of Nodes, by name or provider id: the older form, used without InstancesV2."""

    @abstractmethod
    async def addresses(self, node_name: str) -> Addresses:
        """Return pairs of type and address. Raises InstanceNotFound."""

    @abstractmethod
    async def instance_id(self, node_name: str) -> str:
        """Return the provider's name of the instance, also if it is off. Raises InstanceNotFound."""

    async def addresses_by_provider_id(self, provider_id: str) -> Addresses:
        """Return pairs of type and address; `addresses` is called if this fails."""
        raise NotSupported

    async def instance_type(self, node_name: str) -> str:
        """Return the type, '' for none."""
        raise NotSupported

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """Return the type, '' for none; `instance_type` is called if this fails."""
        raise NotSupported

    async def exists_by_provider_id(self, provider_id: str) -> bool:
        """Return whether the instance exists, running or not."""
        raise NotSupported

    async def is_shut_down_by_provider_id(self, provider_id: str) -> bool:
        """Return whether the instance is off."""
        raise NotSupported

    async def current_node_name(self, hostname: str) -> str:
        """Return the name of the Node on which this process runs."""
        raise NotSupported

    async def add_ssh_key_to_all_instances(self, user: str, key: bytes) -> None:
        """Add the public key of a user. Deprecated: no controller calls it."""
        raise NotSupported


class Zone(Struct, frozen=True):
    """The zone and region of an instance."""

    failure_domain: str = ""
    region: str = ""


class Zones(ABC):
    """The zones of instances. Deprecated: InstancesV2.metadata has them; used only with `Instances`."""

    @abstractmethod
    async def zone_of(self, node_name: str) -> Zone:
        """Return the zone of a Node. Raises InstanceNotFound."""

    async def zone_of_provider_id(self, provider_id: str) -> Zone:
        """Return the zone of an instance; `zone_of` is called if this fails."""
        raise NotSupported

    async def zone(self) -> Zone:
        """Return the zone of this process. No controller calls it."""
        raise NotSupported


class PVLabeler(ABC):
    """Labels of volumes. Deprecated: storage drivers set them; no controller calls it."""

    @abstractmethod
    async def labels_of_volume(self, volume: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the labels of a PersistentVolume, given in Kubernetes' JSON form."""


class Clusters(ABC):
    """The clusters of a provider. No controller uses them."""

    @abstractmethod
    async def list(self) -> Sequence[str]:
        """Return their names."""

    async def master(self, cluster: str) -> str:
        """Return the address of a cluster's API server, an IP or a name."""
        raise NotSupported


class Route(Struct, frozen=True):
    """A route to the pods of a Node; `destination` is a CIDR, `target_node` '' if its Node is unknown.

    `blackhole`: it drops packets. `target_addresses` are compared with the Node's if `compares_addresses`.
    """

    name: str
    target_node: str
    destination: str
    blackhole: bool = False
    target_addresses: Addresses = ()
    compares_addresses: bool = False


class Routes(ABC):
    """The routes to the pods of Nodes: only those that the provider created."""

    @abstractmethod
    async def list(self, cluster: str) -> Sequence[Route]:
        """Return the routes of a cluster."""

    @abstractmethod
    async def create(self, cluster: str, name_hint: str, route: Route) -> None:
        """Create a route; `route.name` is '', and `name_hint` (the Node's uid) may become a part of it."""

    @abstractmethod
    async def delete(self, cluster: str, route: Route) -> None:
        """Remove a route from `list`."""
