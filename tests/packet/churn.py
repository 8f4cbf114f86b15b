"""Changes of a control plane during the fuzzer's packets: backends rest, leave and return, next hops retire and return.

Written in the order of a plan (slots, matches and tables before the path record), so a packet between two steps is never run.
"""

from __future__ import annotations

import random
import struct
from itertools import cycle, islice
from typing import TYPE_CHECKING

from lbagent.maps import layout
from lbagent.maps.layout import PathFlag
from tests.packet import craft
from tests.packet.world import AFFINITY, MAGLEV, BackendRow, ServiceRow

if TYPE_CHECKING:
    from tests.packet.corpus import Scene

LIVE, RESTING, GONE = "live", "resting", "gone"


class Churn:
    """Changes a scene at random; `scene.backends` always has the backends that may get packets now."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        """Take a scene in which every backend lives and takes new flows."""
        self.scene, self.rng = scene, rng
        self.states = {row.id: LIVE for row in scene.backend_rows}
        self.retired: dict[int, bytes] = {}  # next hop index -> its record

    def step(self) -> None:
        """Change one thing."""
        if self.rng.random() < 0.2:
            self._nexthop()
            return
        row = self.rng.choice(self.scene.backend_rows)
        self._to(row, self.rng.choice([state for state in (LIVE, RESTING, GONE) if state != self.states[row.id]]))

    def _to(self, row: BackendRow, state: str) -> None:
        world, before = self.scene.world, self.states[row.id]
        self.states[row.id] = state
        endpoint = (row.family.packed(row.address), row.port, row.proto)
        if state == GONE:
            self._services(row)
            world.remove_backend(row)
            self.scene.backends.discard(endpoint)
            return
        if before == GONE:
            world.path_flags(row, set_=PathFlag.LIVE)
            self.scene.backends.add(endpoint)
        selectable = PathFlag.SELECTABLE if state == LIVE else 0
        world.path_flags(row, set_=selectable, clear=PathFlag.SELECTABLE - selectable)
        self._services(row)

    def _services(self, changed: BackendRow) -> None:
        """Write the slots of every frontend with this backend again."""
        world = self.scene.world
        for row in self.scene.rows:
            if changed not in row.backends:
                continue
            live = [b for b in row.backends if self.states[b.id] == LIVE]
            resting = [b for b in row.backends if self.states[b.id] == RESTING]
            for n, backend in enumerate([*live, *resting], 1):
                world.slot(row, n, target=backend.id)
            if row.target >> 24 == MAGLEV and live:
                world.maglev(row, list(islice(cycle(b.id for b in live), world.sizes.maglev_size)))
            if row.flags & AFFINITY:
                self._match(row, changed, present=changed in live)
            world.slot(row, 0, target=row.target, count=len(live), qcount=len(resting))

    def _match(self, row: ServiceRow, backend: BackendRow, *, present: bool) -> None:
        key = layout.LB_AFFINITY_MATCH.pack(backend.id, row.id.to_bytes(2, "big"), b"\0\0")
        if present:
            self.scene.world.put("lb_affinity_match", [(key, b"\0")])
        else:
            self.scene.world.maps.delete_many("lb_affinity_match", [key])

    def _nexthop(self) -> None:
        """Retire a next hop (flows fall back to the FIB) or take it from XDP, or bring it back; whether XDP may send to lb1 changes too."""
        world, send = self.scene.world, self.rng.choice([0, layout.DeviceFlag.XDP_SEND])
        world.device(world.net.lb1, send, craft.NODE2_MAC)
        maps, size = self.scene.world.maps, layout.LB_NEXTHOP.size
        index = self.rng.choice(sorted(self.scene.world.nexthops.values()))
        with maps.window("lb_nexthop", index * size, size) as view:
            if index in self.retired:
                view[:] = self.retired.pop(index)
            else:
                self.retired[index] = bytes(view)
                (ifindex,) = struct.unpack("=I", view[size - 4 :])
                view[size - 4 :] = struct.pack("=I", self.rng.choice([0, ifindex | layout.NEXTHOP_NO_XDP]))
