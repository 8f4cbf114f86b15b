"""NftServiceRenderer: the same table by the calls of the renderer API, for what uses renderers without the agent.

It writes at `flush` alone, what was called since the one before. Packets that come in by a device of `update_local_backend_ifs`
are a Pod's. A backend is local where its row has the mark, or where its address is one of the node's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lbagent.config import Config
from lbagent.model.address import parse_ip
from lbagent.model.backend import Backend
from lbagent.model.service import SVC, ServiceName
from lbagent.net.snapshot import EMPTY
from lbagent.render.renderer_types import Difference, Interfaces, IPAddresses, ResolvedService, ResyncEventData
from lbagent.render.service_renderer import HOST_PORTS, TRANSLATES
from lbagent.targets.data_plane import Feature
from lbagent.targets.nftables.findings import findings
from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.nft_settings import table_settings
from lbagent.targets.nftables.nft_writer import NftWriter
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.rule_set import RuleSet
from lbagent.targets.nftables.table_lock import TableLock


class CalledPlace(NodePlace):
    """Where backends are, as the calls say."""

    def __init__(self, node_ips: frozenset[bytes] = frozenset(), devices: Sequence[str] = ()) -> None:
        super().__init__("", (), EMPTY, node_ips)
        self.devices = devices
        self.signature = (node_ips, ())

    def is_local(self, backend: Backend) -> bool:
        """Return what the row says; an address of the node is local, too."""
        return backend.local or super().is_local(backend)


class NftServiceRenderer:
    """Gathers calls, and writes the table at `flush`."""

    def __init__(self, settings: Mapping[str, str], features: frozenset[Feature]) -> None:
        """Take the settings `table`, `priority` and `family`. Raises ConfigError."""
        self._settings = table_settings(settings, Config(), with_device_set=True)
        self._features = features
        self._services: dict[str, tuple[SVC, ...]] = {}
        self._node_ips: frozenset[bytes] = frozenset()
        self._devices: Sequence[str] = ()
        self._lock = TableLock(self._settings.table)
        self._writer: NftWriter | None = None

    # --- calls that are gathered ---

    async def add_service(self, service: ResolvedService) -> None:
        """Take a Service."""
        self._services[service.id] = service.svcs

    async def update_service(
        self, old: ResolvedService, new: ResolvedService, others: Sequence[ResolvedService]
    ) -> None:
        """Take a Service in place of what it was."""
        del others
        self._services.pop(old.id, None)
        self._services[new.id] = new.svcs

    async def delete_service(self, service: ResolvedService, others: Sequence[ResolvedService]) -> None:
        """Take a Service away."""
        del others
        self._services.pop(service.id, None)

    async def update_node_port_services(self, node_ips: IPAddresses, services: Sequence[ResolvedService]) -> None:
        """Take addresses for NodePorts; each Service has them in its rows."""
        self._node_ips = frozenset(map(parse_ip, node_ips))
        for service in services:
            self._services[service.id] = service.svcs

    async def update_local_frontend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Nothing depends on the devices of clients."""

    async def update_local_backend_ifs(self, old: Interfaces, new: Interfaces) -> None:
        """Take the devices of Pods."""
        del old
        self._devices = new.list()

    async def resync(self, snapshot: ResyncEventData) -> None:
        """Take everything, and compare it with the table at the next `flush`."""
        self._services = {service.id: service.svcs for service in snapshot.services}
        self._node_ips = frozenset(map(parse_ip, snapshot.node_ips))
        self._devices = snapshot.backend_ifs.list()
        if self._writer is not None:
            self._writer.lose_sync()

    async def flush(self) -> None:
        """Write what differs. Raises Conflict, NotOurs, KernelError, OSError."""
        writer = self._opened()
        place = CalledPlace(self._node_ips, self._devices)
        if place.signature != writer.place.signature:
            writer.move(place)
        writer.place = place
        await writer.write(_by_name(self._services.values()))

    def _opened(self) -> NftWriter:
        if self._writer is None:
            self._lock.take()
            self._writer = NftWriter(self._settings, CalledPlace())
        return self._writer

    # --- what there is ---

    async def dump(self) -> list[str]:
        """Return the elements of the table, `MAP: ELEMENT`, sorted by map and key. Raises OSError."""
        found = self._opened().table.read()
        return [
            f"{name}: {spec.element_text(key, element)}"
            for name, spec in MAPS.items()
            for key, element in sorted(found[name].items(), key=lambda item: spec.order(item[0]))
        ]

    async def verify(self, snapshot: ResyncEventData) -> list[Difference]:
        """Return in what the table differs from the snapshot. Raises NotOurs, OSError."""
        table = self._opened().table
        if not table.exists():
            return [Difference("missing", f"table inet {table.name} is not there")] if snapshot.services else []
        place = CalledPlace(frozenset(map(parse_ip, snapshot.node_ips)), snapshot.backend_ifs.list())
        rules = RuleSet(self._settings, place.is_local)
        rules.set_devices(place.devices)
        for name, rows in _by_name(service.svcs for service in snapshot.services).items():
            rules.update(name, rows)
        chains = table.faults(rules.base)
        chains += [Difference("differs", f"the rules of chain {name} were changed") for name in table.changed_chains()]
        return [*chains, *findings(table.read(), self._opened().with_refused(rules.elements()))]

    def capabilities(self) -> frozenset[str]:
        """Return the words of `lbagent renderers`, and that it translates packets."""
        return frozenset({*map(str, self._features), TRANSLATES, HOST_PORTS})

    async def close(self, keep: bool) -> None:
        """Close the sockets; without `keep` the table goes. Raises NotOurs, KernelError."""
        if not keep:
            self._opened().table.remove()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._lock.release()


def _by_name(services: Iterable[Iterable[SVC]]) -> dict[ServiceName, list[SVC]]:
    found: dict[ServiceName, list[SVC]] = {}
    for rows in services:
        for row in rows:
            found.setdefault(row.name, []).append(row)
    return found
