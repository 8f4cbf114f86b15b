"""A loop and a BpfTarget over maps in memory, with a source of the test's objects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager

from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.maps.specs import Sizes
from lbagent.model.address import L4Type
from lbagent.model.message import Message
from lbagent.model.path_info import PathInfo
from lbagent.objects.records import (
    Endpoint,
    EndpointSlice,
    ObjectChange,
    ObjectSnapshot,
    Origin,
    Service,
    ServicePort,
    SlicePort,
)
from lbagent.resolve import Options, Resolver
from lbagent.sync.loop import SyncLoop
from lbagent.sync.target_protocol import Target
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.objects.kinds import kind_of

SMALL = Sizes(
    flow4=1024, flow6=1024, snat4=1024, snat6=1024, services=256, backends=1024, source_ranges=64, maglev_size=251
)


class ListSource:
    """A source of the test's objects."""

    def __init__(self, name: str = "list") -> None:
        self.name = name
        self.synced = asyncio.Event()
        self.trusted, self.listed, self.remembered = True, False, False
        self.remedy, self.held = "", 0
        self.changed = lambda _changes: None
        self.objects: dict[tuple[str, str], object] = {}

    @property
    def distrust(self) -> Message | None:
        return None if self.trusted else Message("its last list was no good")

    def snapshot(self) -> ObjectSnapshot:
        return ObjectSnapshot()

    def problems(self) -> Sequence[Message]:
        return ()

    def resume(self) -> None:
        pass

    async def run(self, changed) -> None:  # type: ignore[no-untyped-def]
        self.changed = changed

    def put(self, *objects: Service | EndpointSlice) -> None:
        changes = []
        for obj in objects:
            kind = kind_of(obj)
            changes.append(ObjectChange(kind, obj.key, self.objects.get((kind, obj.key)), obj))  # type: ignore[arg-type]
            self.objects[kind, obj.key] = obj
        self.changed(changes)

    def drop(self, *objects: Service | EndpointSlice) -> None:
        self.changed([ObjectChange(kind_of(o), o.key, self.objects.pop((kind_of(o), o.key)), None) for o in objects])  # type: ignore[arg-type]

    def first_list(self, *objects: Service | EndpointSlice) -> None:
        self.put(*objects)
        self.synced.set()


class FixedPaths:
    """Every backend behind one next hop."""

    def __init__(self) -> None:
        self.info = PathInfo(b"\x0a\0\0\1", 1, 1500, False, False)
        self.asked = 0

    def path(self, _backend: object) -> PathInfo:
        self.asked += 1
        return self.info

    def snat_addresses(self) -> tuple[bytes, ...]:
        return (b"\x0a\0\0\1",)

    async def resolve_neighbours(self) -> bool:
        return False

    def paths_planned(self) -> None:
        pass


def make(maps: LBMaps | None = None, *sources: ListSource) -> tuple[SyncLoop, BpfTarget, FixedPaths]:
    """Build a loop and a target that continue from the maps."""
    paths = FixedPaths()
    target = BpfTarget.open(maps or MemoryMaps(SMALL), paths, "me")
    return make_loop(sources, target), target, paths


def make_loop(sources: Sequence[ListSource], *targets: Target) -> SyncLoop:
    """Build a loop over these targets."""
    loop = SyncLoop(Resolver(Options("me", keep_existing=True)), sources, targets)
    for source in sources:
        source.changed = loop.inbox.feed(source)
    return loop


@asynccontextmanager
async def running(loop: SyncLoop):  # type: ignore[no-untyped-def]
    """Run the loop for a while; raises its errors."""
    task = asyncio.create_task(loop.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def service(number: int, **more: object) -> Service:
    ip = bytes([10, 96, number >> 8, number & 255])
    port = ServicePort("http", L4Type.TCP, 80)
    return Service(
        "default", f"s{number}", Origin("f", number), 1.0, "", "ClusterIP", (4,), (ip,), ports=(port,), **more
    )  # type: ignore[arg-type]


def endpoints(number: int, *hosts: int) -> EndpointSlice:
    found = tuple(Endpoint(bytes([10, 1, number, host])) for host in hosts)
    return EndpointSlice(
        "default", f"s{number}-x", f"s{number}", 4, Origin("f", number), (SlicePort("http", L4Type.TCP, 8080),), found
    )
