"""Provider `baremetal`: machines of an inventory, and routes to their pods in the kernel of this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from lbagent.cloud.builtin.baremetal_config import Inventory, Machine, read_inventory
from lbagent.cloud.provider import (
    CloudProvider,
    InstanceMetadata,
    InstanceNotFound,
    InstancesV2,
    Node,
    NotSupported,
    Route,
    Routes,
)
from lbagent.errors import LbError
from lbagent.net.pod_routes import PodRoute, PodRoutes

SCHEME = "baremetal://"


class BaremetalInstances(InstancesV2):
    """The machines of the inventory; the machine of a Node is found by its providerID, without one by its name."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory

    async def exists(self, node: Node) -> bool:
        """Return whether the inventory has the machine. Raises NotSupported for a Node of another provider."""
        return self._machine(node) is not None

    async def is_shut_down(self, node: Node) -> bool:
        """Return whether the inventory has `powered: false`."""
        machine = self._machine(node)
        return machine is not None and not machine.powered

    async def metadata(self, node: Node) -> InstanceMetadata:
        """Return the inventory's values. Raises InstanceNotFound."""
        machine = self._machine(node)
        if machine is None:
            raise InstanceNotFound(f"the inventory has no machine for the Node {node.name}")
        addresses = [("InternalIP", text) for text in machine.internal]
        addresses += [("ExternalIP", text) for text in machine.external]
        addresses += [("HostName", machine.host_name)] if machine.host_name else []
        return InstanceMetadata(
            SCHEME + machine.id,
            machine.type,
            tuple(addresses),
            machine.zone,
            machine.region,
            tuple(machine.labels.items()),
        )

    def _machine(self, node: Node) -> Machine | None:
        machines = self.inventory.machines
        if not node.provider_id:
            return next((each for each in machines if each.name == node.name), None)
        if not node.provider_id.startswith(SCHEME):
            raise NotSupported(f"providerID {node.provider_id} of the Node {node.name} is another provider's")
        wanted = node.provider_id.removeprefix(SCHEME)
        return next((each for each in machines if each.id == wanted), None)


class BaremetalRoutes(Routes):
    """Routes in this machine's kernel, by the internal addresses of the inventory. The name of a route is its destination."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory

    async def list(self, cluster: str) -> Sequence[Route]:
        """Return the routes; a route whose gateway is no machine's has no Node."""
        owners = {address: each.name for each in self.inventory.machines for address in each.internal}
        return [
            Route(each.destination, owners.get(each.gateway, ""), each.destination, blackhole=bool(each.refuses))
            for each in await self._kernel().list()
        ]

    async def create(self, cluster: str, name_hint: str, route: Route) -> None:
        """Create a route by the machine's first address of its family. Raises InstanceNotFound, LbError."""
        machine = next((each for each in self.inventory.machines if each.name == route.target_node), None)
        if machine is None:
            raise InstanceNotFound(f"the inventory has no machine for the Node {route.target_node}")
        version = ipaddress.ip_network(route.destination).version
        gateway = next((each for each in machine.internal if ipaddress.ip_address(each).version == version), None)
        if gateway is None:
            raise LbError(f"the machine {machine.name} has no IPv{version} address in the inventory")
        await self._kernel().add(route.destination, gateway)

    async def delete(self, cluster: str, route: Route) -> None:
        """Remove a route as it is in the kernel now."""
        for each in await self._kernel().list():
            if each.destination == route.destination and self._is(each, route):
                await self._kernel().delete(each)

    def _is(self, each: PodRoute, route: Route) -> bool:
        owners = {address: machine.name for machine in self.inventory.machines for address in machine.internal}
        return bool(each.refuses) == route.blackhole and owners.get(each.gateway, "") == route.target_node

    def _kernel(self) -> PodRoutes:
        assert self.inventory.routes is not None
        return PodRoutes(self.inventory.routes.table, self.inventory.routes.protocol)


class BaremetalProvider(CloudProvider):
    """Has machines, and routes if the inventory has the section `routes`; it has no balancers."""

    name = "baremetal"

    def __init__(self, config: str | None) -> None:
        """Raises ConfigError."""
        inventory = read_inventory(config or "")
        self._instances, self._routes = BaremetalInstances(inventory), BaremetalRoutes(inventory)

    def instances_v2(self) -> InstancesV2:
        """Return the part for machines."""
        return self._instances

    def routes(self) -> Routes | None:
        """Return the part for routes; None: the inventory has no such section."""
        return self._routes if self._routes.inventory.routes else None

    def reload(self, config: str) -> None:
        """Replace the inventory. Raises ConfigError, also if `routes` differs: the old routes would be left over."""
        inventory = read_inventory(config)
        if inventory.routes != self._routes.inventory.routes:
            raise NotSupported("a changed `routes` takes effect after a restart")
        self._instances.inventory = self._routes.inventory = inventory
