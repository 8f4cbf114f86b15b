"""Adapts Instances and Zones, the older parts of a provider, to InstancesV2, the only one that the controllers of Nodes use.

Source: k8s.io/cloud-provider, getInstanceMetadata and node_lifecycle_controller.go (behaviour).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from lbagent.cloud.provider import CloudProvider
from lbagent.cloud.provider_api.provider_errors import InstanceNotFound, NotSupported
from lbagent.cloud.provider_api.provider_parts import InstanceMetadata, Instances, InstancesV2, Zone, Zones
from lbagent.cloud.provider_api.provider_records import Node
from lbagent.errors import LbError

T = TypeVar("T")


def instances_of(provider: CloudProvider) -> InstancesV2 | None:
    """Return the part of a provider for machines; None: it has none."""
    newer, older = provider.instances_v2(), provider.instances()
    if newer is not None or older is None:
        return newer
    return OlderInstances(provider.name, older, provider.zones())


class OlderInstances(InstancesV2):
    """The older parts; calls by name if the provider id is not supported."""

    def __init__(self, provider_name: str, instances: Instances, zones: Zones | None) -> None:
        self._provider_name, self._instances, self._zones = provider_name, instances, zones

    async def exists(self, node: Node) -> bool:
        """Return whether the instance exists; InstanceNotFound for a name is a definite answer too."""
        try:
            provider_id = await self._provider_id(node)
        except InstanceNotFound:
            return False
        return await self._instances.exists_by_provider_id(provider_id)

    async def is_shut_down(self, node: Node) -> bool:
        """Return whether the instance is off; False if the provider does not support the call."""
        try:
            return await self._instances.is_shut_down_by_provider_id(await self._provider_id(node))
        except (InstanceNotFound, NotSupported):
            return False

    async def metadata(self, node: Node) -> InstanceMetadata:
        """Return the data of the instance."""
        provider_id, instances, zone = await self._provider_id(node), self._instances, Zone()
        addresses = await _either(instances.addresses_by_provider_id, provider_id, instances.addresses, node.name)
        kind = await _either(instances.instance_type_by_provider_id, provider_id, instances.instance_type, node.name)
        if self._zones is not None:
            zone = await _either(self._zones.zone_of_provider_id, provider_id, self._zones.zone_of, node.name)
        return InstanceMetadata(provider_id, kind, addresses, zone.failure_domain, zone.region)

    async def _provider_id(self, node: Node) -> str:
        """Return the Node's, else PROVIDER://ID. Raises InstanceNotFound."""
        return node.provider_id or f"{self._provider_name}://{await self._instances.instance_id(node.name)}"


async def _either(
    by_id: Callable[[str], Awaitable[T]], provider_id: str, by_name: Callable[[str], Awaitable[T]], name: str
) -> T:
    try:
        return await by_id(provider_id)
    except LbError as error:
        try:
            return await by_name(name)
        except LbError as other:
            raise LbError(f"by provider id: {error}; by name: {other}") from None
