"""NftServiceRenderer: the same table by the calls of the renderer API, for what uses renderers without the agent.

It writes at `flush` alone, what was called since the one before. Packets that come in by a device of `update_local_backend_ifs`
are a Pod's. A backend is local where its row has the mark, or where its address is one of the node's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbagent.config import Config
from lbagent.model.address import parse_ip
from lbagent.model.backend import Backend
from lbagent.net.snapshot import EMPTY
from lbagent.render.gathered_calls import GatheredCalls, by_name
from lbagent.render.renderer_types import Difference, ResyncEventData
from lbagent.render.service_renderer import HOST_PORTS, TRANSLATES
from lbagent.targets.data_plane import Feature
from lbagent.targets.nftables.findings import findings
from lbagent.targets.nftables.map_specs import MAPS
from lbagent.targets.nftables.nft_settings import table_settings
from lbagent.targets.nftables.nft_writer import NftWriter
from lbagent.targets.nftables.node_place import NodePlace
from lbagent.targets.nftables.rule_set import RuleSet
from lbagent.targets.nftables.table_lock import TableLock
from lbagent.targets.other_translator import OtherTranslator


class CalledPlace(NodePlace):
    """Where backends are, as the calls say."""

    def __init__(self, node_ips: frozenset[bytes] = frozenset(), devices: Sequence[str] = ()) -> None:
        super().__init__("", (), EMPTY, node_ips)
        self.devices = devices
        self.signature = (node_ips, ())

    def is_local(self, backend: Backend) -> bool:
        """Return what the row says; an address of the node is local, too."""
        return backend.local or super().is_local(backend)


class NftServiceRenderer(GatheredCalls):
    """Gathers calls, and writes the table at `flush`."""

    def __init__(self, settings: Mapping[str, str], features: frozenset[Feature], config: Config) -> None:
        """Take the settings `table`, `priority` and `family`; `config` has the folder of the BPF maps. Raises ConfigError."""
        super().__init__()
        self._settings = table_settings(settings, config, with_device_set=True)
        self._features = features
        self._lock = TableLock(self._settings.table)
        self._writer: NftWriter | None = None
        self._other = OtherTranslator("nftables", self._settings.families, config)

    async def flush(self) -> None:
        """Write what differs. Raises Conflict, NotOurs, KernelError, OSError."""
        rows = self.rows()
        await self._other.require_none(rows)
        writer = self._opened()
        if self.is_resync:
            writer.lose_sync()
        place = CalledPlace(self.node_ips, self.backend_ifs)
        if place.signature != writer.place.signature:
            writer.move(place)
        writer.place = place
        await writer.write(by_name(self.services.values()))
        self._other.wrote(rows)
        self.is_resync = False

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
        rules.set_node(place.devices)
        for name, rows in by_name(service.svcs for service in snapshot.services).items():
            rules.update(name, rows)
        chains = table.faults(rules.base)
        chains += [Difference("differs", f"the rules of chain {name} were changed") for name in table.changed_chains()]
        return [*chains, *findings(table.read(), self._opened().with_answers(rules.elements()))]

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
