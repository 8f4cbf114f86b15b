"""The textbook reference program (reference/textbook.c), loaded and filled with a world."""

from __future__ import annotations

import os
import struct

from bench.programs import ARRAY, ARRAY_OF_MAPS, HASH, LRU_HASH, PERCPU_ARRAY, Map, Maps, load
from bench.world import TABLE, Service, World
from bench.wrapper import CLIENT_MAC, NODE_MAC
from lbagent.model.maglev import lookup_table

LOCAL = 1
BACKEND_COUNTERS = 65536
MAX_BACKENDS = 4096


class Textbook:
    """One loaded instance; `flows` is how many flows its table holds (two entries each)."""

    name = "textbook"

    def __init__(self, world: World, flows: int, ifindex: int) -> None:
        """Create the maps, load the program and fill it; packets leave by their ingress device."""
        self.ifindex = ifindex
        self.family = world.family
        a = 4 if world.family == 4 else 16
        wide = world.family == 6
        inner = Map(ARRAY, 4, 4, TABLE)
        self.maps = Maps(
            {
                "tb_connections": Map(LRU_HASH, 40 if wide else 16, 40 if wide else 24, 2 * flows),
                "tb_service": Map(HASH, 24 if wide else 8, 8, 1 << 15, 1),
                "tb_frontend": Map(ARRAY, 4, a + 8, 1 << 16),
                "tb_backend": Map(ARRAY, 4, 2 * a + 8, MAX_BACKENDS),
                "tb_nexthop": Map(ARRAY, 4, 16, 256),
                "tb_counters": Map(PERCPU_ARRAY, 4, 16, BACKEND_COUNTERS + MAX_BACKENDS),
                "tb_maglev": Map(ARRAY_OF_MAPS, 4, 4, 16, 0, inner),
            }
        )
        self._ids: dict[tuple[bytes, int], int] = {}
        self._fill(world)
        self.fd = load("textbook", world.family, self.maps, (f"-DMAGLEV_SIZE={TABLE}ull",))

    def _fill(self, world: World) -> None:
        self.maps.put("tb_nexthop", struct.pack("<I", 1), CLIENT_MAC + NODE_MAC + struct.pack("<I", self.ifindex))
        self.maps.put("tb_nexthop", struct.pack("<I", 0), CLIENT_MAC + NODE_MAC + struct.pack("<I", self.ifindex))
        for table, measured in enumerate((world.remote, world.local, *world.singles)):
            self._backends(world, measured)
            self.maps.put_inner("tb_maglev", table, self._table(measured))
        for number, service in enumerate((world.remote, world.remote_udp, world.local, *world.others), 1):
            self._service(number, service, int(service.local))
        for table, service in enumerate(world.singles, 2):
            self._service(60000 + table, service, table)

    def _backends(self, world: World, service: Service) -> None:
        for address, port in service.backends:
            index = self._ids.setdefault((address, port), len(self._ids) + 1)
            record = address + world.node + struct.pack(">H", port) + struct.pack("<BBHH", 1, service.local, 1, 1500)
            self.maps.put("tb_backend", struct.pack("<I", index), record)

    def _table(self, service: Service) -> list[int]:
        rows = [(self._ids[b], 100, b[0] + b[1].to_bytes(2, "big")) for b in service.backends]
        return list(lookup_table(rows, TABLE))

    def _service(self, number: int, service: Service, table: int) -> None:
        key = service.vip + struct.pack(">HB5x" if self.family == 6 else ">HBx", service.port, service.proto)
        self.maps.put("tb_service", key, struct.pack("<II", number, table))
        self.maps.put("tb_frontend", struct.pack("<I", number), service.vip + struct.pack(">H6x", service.port))

    def close(self) -> None:
        """Unload."""
        os.close(self.fd)
        self.maps.close()
