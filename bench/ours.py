"""lbagent's programs under test: with their own maps, filled with a world, without pins, in a private namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bench import world as worlds
from bench.wrapper import CLIENT_MAC, NODE_MAC
from lbagent.maps.layout import PATH_L4_SHIFT, DeviceFlag, PathFlag, PathL4
from lbagent.maps.reasons import Reason
from lbagent.maps.specs import Sizes
from lbagent.model.address import L4Type, format_ip
from lbagent.model.maglev import lookup_table
from tests.packet.craft import FAMILIES, ROUTER_MAC
from tests.packet.harness import open_world
from tests.packet.world import MAGLEV, BackendRow, World


def sizes(flows: int, snat: int = 0) -> Sizes:
    """Return tables for this many flow entries, and maps that hold 10,000 services."""
    return Sizes(
        flow4=flows, flow6=flows, snat4=snat or flows, snat6=snat or flows, services=1 << 16, backends=1 << 12,
        source_ranges=1 << 8, affinity=1 << 8, spill=1 << 16, fragments=1 << 8, maglev_size=worlds.TABLE,
    )  # fmt: skip


class Ours:
    """The loaded programs and the builder of their maps."""

    name = "ours"

    def __init__(self, kernel: World, world: worlds.World) -> None:
        """Fill the maps with a world; packets come in by the first device and leave by it."""
        self.kernel, self.fd = kernel, kernel.programs["xdp"]
        self.ifindex = kernel.net.lb0
        self.family = FAMILIES[world.family]
        kernel.device(self.ifindex, DeviceFlag.XDP_SEND, NODE_MAC.hex(":"))
        self.hop = kernel.nexthop(self.ifindex, CLIENT_MAC.hex(":"), NODE_MAC.hex(":"))
        kernel.nexthop(
            self.ifindex, ROUTER_MAC, NODE_MAC.hex(":")
        )  # the FIB's result for clients, stored by first replies
        kernel.filter("snat", world.node)
        kernel.filter("vip", world.node)
        self._node = world.node
        self._rows: dict[tuple[bytes, int], BackendRow] = {}
        for service in (world.remote, world.remote_udp, world.local):
            self._service(service, maglev=True)
        for service in (*world.others, *world.singles):
            self._service(service, maglev=False)

    def _service(self, service: worlds.Service, *, maglev: bool) -> None:
        rows = [self.backend(address, port, service) for address, port in service.backends]
        made = self.kernel.service(
            self.family, format_ip(service.vip), service.port, service.proto, rows, algorithm=MAGLEV if maglev else 1
        )
        if maglev:
            members = [
                (row.id, 100, address + port.to_bytes(2, "big"))
                for row, (address, port) in zip(rows, service.backends, strict=True)
            ]
            self.kernel.maglev(made, lookup_table(members, worlds.TABLE))

    def backend(self, address: bytes, port: int, service: worlds.Service) -> BackendRow:
        """Return the record of a backend of this service."""
        key = (address, port + (service.proto << 16))
        if key not in self._rows:
            row = self.kernel.backend(
                self.family,
                format_ip(address),
                port,
                service.proto,
                local=service.local,
                nexthop=0 if service.local else self.hop,
            )
            if not service.local:
                self._snat(row)
            self._rows[key] = row
        return self._rows[key]

    def _snat(self, row: BackendRow) -> None:
        """Translate to the world's node address."""
        l4 = PathL4[L4Type.from_number(row.proto).name]
        flags = PathFlag.LIVE | PathFlag.SELECTABLE | l4 << PATH_L4_SHIFT
        self.kernel.path(row, flags=flags, nexthop=self.hop, snat=format_ip(self._node))

    def counted(self, *reasons: Reason) -> int:
        """Return packets counted under these reasons since the programs were loaded."""
        return sum(packets for packets, _ in self.kernel.maps.counters([int(reason) for reason in reasons]))

    def forget(self) -> None:
        """Empty the flow table and the SNAT slots."""
        self.kernel.forget_flows()


@contextlib.contextmanager
def opened(world: worlds.World, flows: int, snat: int = 0) -> Iterator[Ours]:
    """Load lbagent's programs with tables of `flows` entries; inside, the thread is in their namespace."""
    with open_world(sizes=sizes(flows, snat)) as kernel, kernel.net.inside():
        yield Ours(kernel, world)
