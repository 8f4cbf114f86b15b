"""Tables of another size, while connections live: none of them is lost, and no request fails."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from lbagent.maps.flows import Hash, Mover
from lbagent.maps.kernel import KernelMaps
from lbagent.maps.layout import Sizes
from lbagent.maps.memory import MemoryMaps
from tests.lab.agent import Agent
from tests.lab.topology import Lab
from tests.lab.traffic import Answer, Load, connect, dns_ask, http_get, request

VIP4, VIP6 = "10.96.0.10", "fd00:96::10"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(tag="rs-") as lab:
        lab.serve_all()
        yield lab


class Connections:
    """Open connections that ask again and again, and must always meet the backend they met first."""

    def __init__(self, lab: Lab, count: int) -> None:
        self.lab = lab
        self.open: list[tuple[socket.socket, str]] = []
        with lab.client.entered():
            for _, vip in zip(range(count), itertools.cycle((VIP4, VIP6))):
                sock = connect(vip, 80)
                self.open.append((sock, request(sock).decode()))

    def ask_all(self) -> None:
        for sock, first in self.open:
            assert request(sock).decode() == first

    def close(self) -> None:
        for sock, _ in self.open:
            sock.close()


def resolve() -> Answer:
    """Ask as a resolver does: again when no answer comes. For a moment new flows are held back, and UDP does not repeat itself."""
    for _ in range(4):
        with contextlib.suppress(TimeoutError):
            return dns_ask("10.96.0.53", 53, timeout_s=1.0)
    raise TimeoutError("no answer to four questions")


def sizes_of(lab: Lab) -> Sizes:
    with KernelMaps.open(lab.bpffs, create=False) as maps:
        return maps.sizes


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.slow
@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_connections_live_through_every_change_of_size(lab: Lab, attach: str) -> None:
    from tests.e2e.cluster import Cluster

    cluster = Cluster(lab, attach, ("--flow-table-size", "16384"))
    cluster.web().write(cluster.folder)
    cluster.dns().write(cluster.folder)
    cluster.agent.start()
    connections = Connections(lab, 60)
    before = cluster.agent.dump()
    asks = [lambda: http_get(VIP4, 80), lambda: http_get(VIP6, 80), resolve]
    with contextlib.closing(connections):
        slots = [
            "--snat-table-size",
            "65536",
            "--snat6-table-size",
            "65536",
        ]  # two flows cannot collide in more of them
        for arguments in (
            ["--flow-table-size", "65536"],
            ["--flow-table-size", "8192", *slots],
            ["--flow-table-size", "16384", *slots, "--max-backends", "1024", "--max-service-slots", "4096"],
        ):
            with Load(lab.client, asks, workers=3, pause_s=0.01) as load:
                load.wait_more(30)
                cluster.agent.stop()
                cluster.agent = Agent(lab, cluster.folder, attach=attach, arguments=arguments)
                cluster.agent.start()
                load.wait_more(60)
            assert load.tally.failures == [], (arguments, cluster.agent.tail(12))
            connections.ask_all()
            assert str(sizes_of(lab).flow4) == arguments[1]
            assert cluster.agent.dump() == before
            assert not (lab.bpffs / "v1" / "resize").exists()
        assert sizes_of(lab).backends == 1024


def test_sizes_that_cannot_hold_what_is_there_change_nothing(lab: Lab) -> None:
    from tests.e2e.cluster import Cluster

    cluster = Cluster(lab, "tc", ())
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    before = cluster.agent.dump()
    cluster.agent.stop()
    sizes = sizes_of(lab)
    cluster.agent = Agent(
        lab, cluster.folder, attach="tc", arguments=["--max-service-slots", "64", "--maglev-table-size", "251"]
    )
    cluster.agent.start(wait=False)
    assert cluster.agent.process is not None
    assert cluster.agent.process.wait(20) == 1
    assert "maglev" in cluster.agent.tail()
    assert sizes_of(lab) == sizes
    assert cluster.agent.dump() == before


# --- the mover alone ---

SMALL = Sizes(
    flow4=64, flow6=64, snat4=256, snat6=256, backends=256, services=256, source_ranges=16, spill=256, maglev_size=251
)
BIG = Sizes(
    flow4=4096,
    flow6=4096,
    snat4=1024,
    snat6=1024,
    backends=256,
    services=256,
    source_ranges=16,
    spill=256,
    maglev_size=251,
)


def entry4(number: int, generation: int = 5, backend: int = 3) -> tuple[int, ...]:
    client, port = 0x0A000000 + number, 1000 + number
    value = backend << 44 | 1 << 36 | 1 << 16 | generation
    return (client << 32 | port << 16 | generation, 0x0A60000A << 32 | 80 << 16 | generation, value, 77 | 9 << 32)


def write4(maps: MemoryMaps, index: int, entry: tuple[int, ...]) -> None:
    maps.store("lb4_flow", [(index * 32 + 8 * i, struct.pack("=Q", word)) for i, word in enumerate(entry)])


def read4(maps: MemoryMaps) -> set[tuple[int, ...]]:
    with maps.window("lb4_flow", 0, maps.specs["lb4_flow"].value_size) as view:
        words = memoryview(bytes(view)).cast("Q")
    rows = (tuple(words[i : i + 4]) for i in range(0, len(words), 4))
    return {(row[0], row[1], row[2], row[3] & ~0xFFFF0000) for row in rows if row[0] >> 16}


def test_a_move_under_way_ends_with_what_the_old_table_holds() -> None:
    rng = random.Random(3)
    for turn in range(20):
        old, new = MemoryMaps(SMALL if turn % 2 else BIG), MemoryMaps(BIG)
        present = {i: entry4(i, rng.randrange(1, 100)) for i in rng.sample(range(64), 40)}
        for index, entry in present.items():
            write4(old, index, entry)
        mover = Mover("4", old, new, Hash(0x1234567890ABCDEF, 0xFEDCBA0987654321), 100)
        if old.specs["lb4_flow"] == new.specs["lb4_flow"]:
            mover._moves_flows = True
        mover.copy()
        assert read4(new) == set(present.values())
        for index in rng.sample(range(64), 20):
            if rng.random() < 0.5:
                present[index] = entry4(100 + index, rng.randrange(1, 100))
                write4(old, index, present[index])
            elif index in present:
                del present[index]
                write4(old, index, (3, 0, 0, 0))  # free; its generation stays
        mover.follow()
        assert read4(new) == set(present.values())
        assert mover.moved == len(present)


def test_what_finds_no_room_is_spilled() -> None:
    old, new = MemoryMaps(BIG), MemoryMaps(SMALL)
    for i in range(100):
        write4(old, i, entry4(i))
    mover = Mover("4", old, new, Hash(1, 2), 100)
    mover.copy()
    mover.follow()
    assert len(read4(new)) == mover.moved
    assert mover.moved <= 64
    rows = dict(new.items("lb4_spill"))
    lost = {entry4(i)[:2] for i in range(100)} - {row[:2] for row in read4(new)}
    assert {struct.pack("=QQ", k0 & ~0x3FFF, k1 & ~0x3FFF) for k0, k1 in lost} <= rows.keys()
