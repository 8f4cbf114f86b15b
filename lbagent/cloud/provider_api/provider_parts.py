"""The parts of a provider that are no balancers: machines, zones, clusters, routes.

Methods that are not abstract raise NotSupported until a provider has them. Source: k8s.io/cloud-provider, cloud.go (behaviour).
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
    """The machines behind Nodes. What has no answer is an error, not False: a Node goes whose instance does not exist.

    `node.provider_id` names the instance; where it is '', the name and the other fields of the Node do.
    """

    @abstractmethod
    async def exists(self, node: Node) -> bool:
        """Return whether the instance is there, running or not."""

    @abstractmethod
    async def is_shut_down(self, node: Node) -> bool:
        """Return whether the instance is off."""

    @abstractmethod
    async def metadata(self, node: Node) -> InstanceMetadata | None:
        """Return what is known of the instance; None: pass the Node over."""


class Instances(ABC):
    """The machines behind Nodes, by name or provider id: the older form, used where there is no InstancesV2."""

    @abstractmethod
    async def addresses(self, node_name: str) -> Addresses:
        """Return pairs of type and address. Raises InstanceNotFound."""

    @abstractmethod
    async def instance_id(self, node_name: str) -> str:
        """Return the provider's name of it, also of one that is off. Raises InstanceNotFound."""

    async def addresses_by_provider_id(self, provider_id: str) -> Addresses:
        """Return pairs of type and address; `addresses` is called where this fails."""
        raise NotSupported

    async def instance_type(self, node_name: str) -> str:
        """Return the type, '' for none."""
        raise NotSupported

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """Return the type, '' for none; `instance_type` is called where this fails."""
        raise NotSupported

    async def exists_by_provider_id(self, provider_id: str) -> bool:
        """Return whether the instance is there, running or not."""
        raise NotSupported

    async def is_shut_down_by_provider_id(self, provider_id: str) -> bool:
        """Return whether the instance is off."""
        raise NotSupported

    async def current_node_name(self, hostname: str) -> str:
        """Return the name of the Node that this process runs on."""
        raise NotSupported

    async def add_ssh_key_to_all_instances(self, user: str, key: bytes) -> None:
        """Let a user in by a public key. Deprecated: no controller calls it."""
        raise NotSupported


class Zone(Struct, frozen=True):
    """Where an instance is."""

    failure_domain: str = ""
    region: str = ""


class Zones(ABC):
    """Where instances are. Deprecated: InstancesV2.metadata has it; used beside `Instances` alone."""

    @abstractmethod
    async def zone_of(self, node_name: str) -> Zone:
        """Return the zone of a Node. Raises InstanceNotFound."""

    async def zone_of_provider_id(self, provider_id: str) -> Zone:
        """Return the zone of an instance; `zone_of` is called where this fails."""
        raise NotSupported

    async def zone(self) -> Zone:
        """Return the zone of this process. No controller calls it."""
        raise NotSupported


class PVLabeler(ABC):
    """Labels of volumes. Deprecated: drivers of storage label theirs; no controller calls it."""

    @abstractmethod
    async def labels_of_volume(self, volume: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the labels of a PersistentVolume, which is given as Kubernetes writes it."""


class Clusters(ABC):
    """The clusters of a provider. No controller uses them."""

    @abstractmethod
    async def list(self) -> Sequence[str]:
        """Return their names."""

    async def master(self, cluster: str) -> str:
        """Return the address of a cluster's API server, an IP or a name."""
        raise NotSupported


class Route(Struct, frozen=True):
    """A way to the pods of a Node; `destination` is a CIDR, `target_node` '' where no Node is known for it.

    `blackhole`: it leads nowhere. `target_addresses` are compared with the Node's where `compares_addresses`.
    """

    name: str
    target_node: str
    destination: str
    blackhole: bool = False
    target_addresses: Addresses = ()
    compares_addresses: bool = False


class Routes(ABC):
    """The ways to the pods of Nodes: those that the provider made, and no others."""

    @abstractmethod
    async def list(self, cluster: str) -> Sequence[Route]:
        """Return those of a cluster."""

    @abstractmethod
    async def create(self, cluster: str, name_hint: str, route: Route) -> None:
        """Make one; `route.name` is '', and `name_hint` (the Node's uid) may become a part of it."""

    @abstractmethod
    async def delete(self, cluster: str, route: Route) -> None:
        """Remove one of those that `list` gave."""
