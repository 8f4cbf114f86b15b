"""ServiceRenderer: what puts Services in force, Service by Service. A renderer may come from a wheel of its own.

A factory makes it: `factory(settings)`, with the texts of `--renderer NAME=KEY=VALUE,...`; it raises ValueError for settings
that it does not accept. Neither the factory nor the constructor changes the system.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from lbagent.render.renderer_types import Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData

API_VERSION = 1  # a factory that needs a later one has it as its attribute `api_version`

# Words of `capabilities` that change what a renderer gets, or beside which others it may run. All others are only shown by
# `lbagent renderers`.
NEEDS_NODES = "needs_nodes"  # node_ips are those of all nodes of the cluster
TRANSLATES = "translates"  # it rewrites packets of Services: of those, one serves each family
HOST_PORTS = "host_ports"  # HostPorts of Pods come as services, too: the id is `pod:NAMESPACE/NAME`


@runtime_checkable
class ServiceRenderer(Protocol):
    """Puts Services in force.

    The caller waits for each call before the next. A call either works or raises: then `resync` is the next one. Calls before
    `flush` may be gathered; after it they are in force, or it raised. The first call is `resync`, and it may come again at any
    time. Every call may come a second time with the same arguments, and changes nothing then.
    """

    @abstractmethod
    async def add_service(self, service: ResolvedService) -> None:
        """Put a new Service in force."""

    @abstractmethod
    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        """Change a Service; `others` are all other Services in force. Flows to backends that stay go on."""

    @abstractmethod
    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        """Remove a Service; what it shares with `others` stays."""

    @abstractmethod
    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """Use these addresses for NodePorts; `services` are all Services that have one."""

    @abstractmethod
    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Use these interfaces as those by which clients reach this node. A renderer may ignore it."""

    @abstractmethod
    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Use these interfaces as those of local Pods that are endpoints. A renderer may ignore it."""

    @abstractmethod
    async def resync(self, snapshot: ResyncEventData) -> None:
        """Make what is in force equal to the snapshot, whatever was there; flows to backends that stay go on."""

    @abstractmethod
    async def flush(self) -> None:
        """End a transaction: the calls before it are in force when this returns."""

    @abstractmethod
    async def dump(self) -> list[str]:
        """Return what is in force, one line per entry, read from the system, in a stable order."""

    @abstractmethod
    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        """Return in what the system differs from the snapshot; change nothing."""

    @abstractmethod
    def capabilities(self) -> frozenset[str]:
        """Return what it can do, one word each. The same words each time."""

    @abstractmethod
    async def close(self, keep: bool) -> None:
        """Free what is open. With `keep` everything in force stays, else the renderer removes all of it."""


Factory = Callable[[Mapping[str, str]], ServiceRenderer]
