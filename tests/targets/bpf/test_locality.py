"""A backend's path follows the objects, and keeps that flows may live that were made while it was local."""

from __future__ import annotations

import asyncio
import struct

from msgspec.structs import replace

from lbagent.maps import prefilter
from lbagent.maps.consistency import check
from lbagent.maps.layout import LB4_PATH
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.path_info import PathInfo
from lbagent.objects.records import EndpointSlice
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.sync.rig import SMALL, FixedPaths, ListSource, endpoints, make_loop, running, service

LIVE, SELECTABLE, LOCAL, WAS_LOCAL, KEEPS_POD = 1, 2, 4, 64, 128  # of lb4_path.flags
ADDRESS = bytes([10, 1, 1, 1])


class ByNode(FixedPaths):
    """What is on the node `me` is local."""

    def path(self, backend):  # type: ignore[no-untyped-def]
        return replace(self.info, local=backend.node_name == "me")


def on(number: int, node: str) -> EndpointSlice:
    """The slice of a Service that places 10.1.1.1 on a node."""
    piece = endpoints(number, 1)
    return replace(piece, endpoints=(replace(piece.endpoints[0], address=ADDRESS, node=node),))


def flags(maps: MemoryMaps) -> int:
    """The flags of the only live path."""
    with maps.window("lb4_path", 0, maps.specs["lb4_path"].value_size) as view:
        records = [bytes(view[at : at + LB4_PATH.size]) for at in range(0, len(view), LB4_PATH.size)]
    (found,) = {record[11] for record in records if record[11] & LIVE}
    return found & (LOCAL | WAS_LOCAL | KEEPS_POD)


def replies_are_seen(maps: MemoryMaps) -> bool:
    """Whether the prefilter lets packets from the backend in."""
    bit = prefilter.source_bit(ADDRESS)
    with maps.window("lb_filter", bit >> 6 << 3, 8) as view:
        return bool(struct.unpack("<Q", bytes(view))[0] >> (bit & 63) & 1)


def build() -> tuple:  # type: ignore[type-arg]
    maps, source = MemoryMaps(SMALL), ListSource()
    target = BpfTarget.open(maps, ByNode(), "me")
    return maps, source, make_loop([source], target), target


async def test_the_path_does_not_stay_local_with_the_service_that_said_so() -> None:
    """Service 1 has the backend on b1; Service 2 says it is here, and is deleted: the path is that of Service 1 again."""
    maps, source, loop, target = build()
    async with running(loop):
        source.first_list(service(1), on(1, "b1"))
        await loop.settled()
        assert flags(maps) == 0
        source.put(service(2), on(2, "me"))
        await loop.settled()
        assert flags(maps) == 0  # they contradict each other: address and route decide
        source.drop(service(2), on(2, "me"))
        await loop.settled()
        assert flags(maps) == 0
        assert await target.differences() == []
        assert not replies_are_seen(maps)


async def test_a_backend_that_was_local_has_its_replies_looked_at_until_it_is_gone() -> None:
    """Its flows keep the client's address, so its replies must be translated: also after a restart in between."""
    maps, source, loop, target = build()
    async with running(loop):
        source.first_list(service(1), on(1, "me"))
        await loop.settled()
        assert flags(maps) == LOCAL
        source.put(on(1, "b1"))
        await loop.settled()
        assert (flags(maps), replies_are_seen(maps)) == (WAS_LOCAL, True)
        assert check(maps, settled=True) == []
        assert await target.resync() == []
    again = BpfTarget.open(maps, ByNode(), "me")
    loop = make_loop([source], again)
    async with running(loop):
        source.objects.clear()
        source.first_list(service(1), on(1, "b1"))
        await loop.settled()
        assert (flags(maps), replies_are_seen(maps)) == (WAS_LOCAL, True)
        source.put(on(1, "me"))
        await loop.settled()
        assert (flags(maps), replies_are_seen(maps)) == (LOCAL, True)
        source.put(on(1, "b1"), endpoints(1, 7))
        await loop.settled()
        assert (flags(maps), replies_are_seen(maps)) == (0, False)


async def test_replies_to_pods_are_looked_at_until_the_backend_is_gone() -> None:
    """Also when pods keep their address no longer (--masquerade-all): their flows under way do."""
    maps, source, loop, target = build()
    paths = target._paths
    async with running(loop):
        paths.info = replace(paths.info, keeps_pod=True)
        source.first_list(service(1), on(1, "b1"))
        await loop.settled()
        assert (flags(maps), replies_are_seen(maps)) == (KEEPS_POD, True)
        assert await target.differences() == []
        for keeps, wanted in ((False, WAS_LOCAL), (True, KEEPS_POD)):
            paths.info = replace(paths.info, keeps_pod=keeps)
            target.paths_changed()
            async with asyncio.timeout(10):
                while flags(maps) != wanted:  # noqa: ASYNC110 - the loop reports only changed objects
                    await asyncio.sleep(0.01)
            assert replies_are_seen(maps)
            assert check(maps, settled=True) == []
        source.put(endpoints(1, 7))
        await loop.settled()
        assert not replies_are_seen(maps)


async def test_a_wrong_path_is_put_right_by_the_resync() -> None:
    """Whatever a plan missed: the comparison finds a path that differs from that of the State, and it is written again."""
    _, source, loop, target = build()
    async with running(loop):
        source.first_list(service(1), on(1, "b1"))
        await loop.settled()
        paths = target._paths
        paths.info = PathInfo(paths.info.snat, 2, 1400)  # as after a change of routes of which nothing told the target
        (text,) = await target.differences()
        assert "the path of backend 1 (10.1.1.1:8080/TCP)" in text.detail
        assert await target.resync() == [text]
        await loop.settled()
        assert await target.differences() == []
