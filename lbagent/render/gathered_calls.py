"""The calls of a renderer between two `flush`es, gathered into everything that is wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lbagent.model.address import parse_ip
from lbagent.model.service import SVC, ServiceName
from lbagent.render.renderer_types import Interfaces, IPAddresses, ResolvedService, ResyncEventData


class GatheredCalls:
    """The first calls of a ServiceRenderer (service_renderer.py), for one that writes at `flush` alone."""

    def __init__(self) -> None:
        self.services: dict[str, tuple[SVC, ...]] = {}  # rows by NAMESPACE/NAME
        self.node_ips: frozenset[bytes] = frozenset()
        self.frontend_ifs: Sequence[str] = ()
        self.backend_ifs: Sequence[str] = ()
        self.is_resync = False  # since the caller reset it

    async def add_service(self, service: ResolvedService) -> None:
        """Take a Service."""
        self.services[service.id] = service.svcs

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        """Take a Service in place of what it was."""
        del others
        self.services.pop(old.id, None)
        self.services[new.id] = new.svcs

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        """Take a Service away."""
        del others
        self.services.pop(service.id, None)

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """Take addresses for NodePorts; each Service has them in its rows."""
        self.node_ips = frozenset(map(parse_ip, node_ips))
        for service in services:
            self.services[service.id] = service.svcs

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Take the devices of clients."""
        del old
        self.frontend_ifs = new.list()

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Take the devices of Pods."""
        del old
        self.backend_ifs = new.list()

    async def resync(self, snapshot: ResyncEventData) -> None:
        """Take everything; what is in force is compared with it at the next `flush`."""
        self.services = {service.id: service.svcs for service in snapshot.services}
        self.node_ips = frozenset(map(parse_ip, snapshot.node_ips))
        self.frontend_ifs, self.backend_ifs = snapshot.frontend_ifs.list(), snapshot.backend_ifs.list()
        self.is_resync = True

    def rows(self) -> list[SVC]:
        """Return the rows of all Services, by the name of the Service."""
        return [row for _, rows in sorted(self.services.items()) for row in rows]


def by_name(services: Iterable[Iterable[SVC]]) -> dict[ServiceName, list[SVC]]:
    """Return the rows of each Service."""
    found: dict[ServiceName, list[SVC]] = {}
    for rows in services:
        for row in rows:
            found.setdefault(row.name, []).append(row)
    return found
