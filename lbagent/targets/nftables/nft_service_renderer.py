"""NftServiceRenderer: nftables as a renderer of the API (lbagent.render), Service by Service. The agent uses NftPlane instead.

What is local is what the Services say. Addresses, links and Pods of the node are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbagent.config import Config
from lbagent.model.backend import Backend
from lbagent.model.service import ServiceName
from lbagent.render import HOST_PORTS, TRANSLATES, Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData
from lbagent.targets.data_plane import Feature
from lbagent.targets.nftables.findings import findings
from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.nft_settings import table_settings
from lbagent.targets.nftables.nft_writer import NftWriter, Rows
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.rule_set import RuleSet


class _AsServicesSay(NodePlace):
    """Takes a backend as local where the State has it as local."""

    def is_local(self, backend: Backend) -> bool:
        """Return whether a backend is on this node."""
        return backend.local


class NftServiceRenderer:
    """Gathers Services; `flush` writes what changed. The sockets are opened by the first call that needs one."""

    def __init__(self, settings: Mapping[str, str], features: frozenset[Feature]) -> None:
        """Raise ConfigError for settings that nftables does not have."""
        self._settings = table_settings(settings, Config())
        self._words = frozenset(map(str, features)) | {TRANSLATES, HOST_PORTS}
        self._services: dict[ServiceName, Rows] = {}
        self._opened: NftWriter | None = None

    @property
    def _writer(self) -> NftWriter:
        if self._opened is None:
            self._opened = NftWriter(self._settings, _AsServicesSay("", ()))
        return self._opened

    # --- calls ---

    async def add_service(self, service: ResolvedService) -> None:
        """Take the rows of a Service."""
        self._services[ServiceName.parse(service.id)] = service.svcs

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        """Take the rows of a Service."""
        self._services[ServiceName.parse(new.id)] = new.svcs

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        """Forget the rows of a Service."""
        self._services.pop(ServiceName.parse(service.id), None)

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """Take the rows of Services with NodePorts: one for each address of the node."""
        for service in services:
            self._services[ServiceName.parse(service.id)] = service.svcs

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """The rules are for packets from everywhere."""

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """The kernel's routes lead to Pods."""

    async def resync(self, snapshot: ResyncEventData) -> None:
        """Take all Services; the next flush compares the whole table."""
        self._services = _rows(snapshot)
        self._writer.lose_sync()

    async def flush(self) -> None:
        """Write what changed. Raises NotOurs, KernelError, OSError."""
        await self._writer.write(dict(self._services))

    # --- comparing ---

    async def dump(self) -> list[str]:
        """Return the elements of the table, one per line. Raises NotOurs, OSError."""
        table = self._writer.table
        found = table.read() if table.exists() else {}
        return [
            f"{name}: {MAPS[name].element_text(key, element)}"
            for name, elements in found.items()
            for key, element in sorted(elements.items())
        ]

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        """Return in what the table differs. Raises NotOurs, OSError."""
        writer, wanted = self._writer, _rows(snapshot)
        if writer.is_synced and writer.rows == wanted:  # then frontends that went are refused for a while
            found = writer.differences()
        elif not writer.table.exists():
            return [Difference("missing", f"table inet {self._settings.table} is not there")]
        else:
            rules = RuleSet(self._settings, writer.place.is_local)
            for name, rows in wanted.items():
                rules.update(name, rows)
            found = list(findings(writer.table.read(), rules.elements()))
        return [Difference(each.kind, each.detail, each.service, each.frontend) for each in found]

    def capabilities(self) -> frozenset[str]:
        """Return what nftables can do."""
        return self._words

    async def close(self, keep: bool) -> None:
        """Close the sockets; without `keep`, remove the table. Raises NotOurs, KernelError."""
        try:
            if not keep:
                self._writer.table.remove()
        finally:
            if self._opened is not None:
                self._opened.close()
                self._opened = None


def _rows(snapshot: ResyncEventData) -> dict[ServiceName, Rows]:
    return {ServiceName.parse(service.id): service.svcs for service in snapshot.services}
