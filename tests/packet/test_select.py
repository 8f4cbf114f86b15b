"""The selection of a new flow's backend: random spreads, Maglev uses only its table."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from lbagent.maps.layout import PathFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.clock import TICK_NS, TimedWorld
from tests.packet.craft import Family
from tests.packet.plain_frames import plain
from tests.packet.world import MAGLEV, RANDOM, TCP, UDP, XDP, BackendRow, World

CLIENTS = 400


def client(fam: Family, n: int) -> tuple[str, int]:
    """Return the n-th client's address and port."""
    base = f"198.51.{n >> 8}.{n & 255}" if fam.version == 4 else f"2001:db8:100::{n:x}"
    return base, 20000 + n * 7


def choices(world: World, fam: Family, hook: str = XDP, count: int = CLIENTS) -> list[tuple[str, int]]:
    """Return the backends the first packets of many clients get."""
    outs = [world.run(hook, plain(fam, TCP, *client(fam, n), fam.vip, 80)) for n in range(count)]
    return [expect.destination(out) for out in outs]


def remotes(world: World, fam: Family, count: int) -> list[BackendRow]:
    """Enter remote backends."""
    return [world.backend(fam, fam.remote(n), 8080) for n in range(1, count + 1)]


def test_random_spreads_evenly(world: World, fam: Family, hook: str) -> None:
    """400 flows over 4 backends: each within five standard deviations (8.66) of its 100."""
    backends = remotes(world, fam, 4)
    world.service(fam, fam.vip, 80, TCP, backends)
    found = Counter(choices(world, fam, hook))
    assert set(found) == {b.endpoint for b in backends}
    assert all(100 - 44 < n < 100 + 44 for n in found.values()), found


def test_frontends_choose_for_themselves(world: World, fam: Family, hook: str) -> None:
    """The same client ports at two addresses and at two ports: each frontend spreads them differently."""
    backends = remotes(world, fam, 4)
    frontends = ((fam.vip, 80), (fam.vip2, 80), (fam.vip, 81))
    for address, port in frontends:
        world.service(fam, address, port, TCP, backends)
    chosen = [
        [expect.destination(world.run(hook, plain(fam, TCP, *client(fam, n), *frontend))) for n in range(60)]
        for frontend in frontends
    ]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        same = sum(a == b for a, b in zip(chosen[one], chosen[other], strict=True))
        assert 2 <= same <= 32, (one, other, same)  # 15 of 60, five standard deviations (3.35)


@pytest.mark.parametrize("algorithm", [RANDOM, MAGLEV], ids=["random", "maglev"])
def test_a_backend_that_lives_is_found_beside_dead_ones(world: World, fam: Family, hook: str, algorithm: int) -> None:
    """Three of four slots lead to records that are gone already: every flow gets the fourth one, wherever its search begins.

    Maglev without its table looks where random does.
    """
    for lives in range(4):
        world.reset()
        backends = remotes(world, fam, 4)
        world.service(fam, fam.vip, 80, TCP, backends, algorithm=algorithm)
        for n, backend in enumerate(backends):
            if n != lives:
                world.path_flags(backend, clear=PathFlag.LIVE | PathFlag.SELECTABLE)
        assert set(choices(world, fam, hook, 25)) == {backends[lives].endpoint}


def test_random_takes_only_the_first_count_slots(world: World, fam: Family) -> None:
    """Slots behind COUNT (terminating, quarantined) get no new flow."""
    backends = remotes(world, fam, 4)
    world.service(fam, fam.vip, 80, TCP, backends[:2], others=backends[2:])
    assert set(choices(world, fam, count=100)) == {b.endpoint for b in backends[:2]}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_behind_them_is_not_tried_either(world: World, fam: Family, hook: str, count: int) -> None:
    """With all of them gone already, a new flow is dropped rather than sent to a backend that rests."""
    backends = remotes(world, fam, 4)
    world.service(fam, fam.vip, 80, TCP, backends[:count], others=backends[count:])
    for backend in backends[:count]:
        world.path_flags(backend, clear=PathFlag.LIVE | PathFlag.SELECTABLE)
    for n in range(10):
        out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000 + n, fam.vip, 80)))
        assert out.dropped
        assert out.counted == {Reason.DROP_MISSING_BACKEND: 1}


def table_positions(world: World, fam: Family, hook: str) -> list[int]:
    """Find out from outside which table entry each client is mapped to.

    One table a bit: entry i names backend 2k or 2k+1 by bit k of i. The answers give the position bit by bit; the test has no
    copy of the hash.
    """
    size = world.sizes.maglev_size
    pair = remotes(world, fam, 2)
    row = world.service(fam, fam.vip, 80, TCP, pair, algorithm=MAGLEV)
    positions = [0] * CLIENTS
    for bit in range(size.bit_length()):
        world.maglev(row, [pair[i >> bit & 1].id for i in range(size)])
        world.forget_flows()
        for n, place in enumerate(choices(world, fam, hook)):
            positions[n] |= (place == pair[1].endpoint) << bit
    return positions


def test_maglev_follows_the_table(world: World, fam: Family, hook: str) -> None:
    """Positions are valid and well spread; any other table is then followed entry by entry, also with an empty flow table."""
    positions = table_positions(world, fam, hook)
    size = world.sizes.maglev_size
    assert all(0 <= at < size for at in positions)
    # 400 balls into 251 bins: 251 * (1 - (250/251)**400) = 200 are hit; five standard deviations are about 30
    assert 165 < len(set(positions)) < 235
    world.reset()
    backends = remotes(world, fam, 5)
    row = world.service(fam, fam.vip, 80, TCP, backends, algorithm=MAGLEV)
    table = [backends[(i * i + 3 * i) % 5] for i in range(size)]
    world.maglev(row, [b.id for b in table])
    for _ in range(2):
        assert choices(world, fam, hook) == [table[at].endpoint for at in positions]
        world.forget_flows()


def test_maglev_moves_only_who_must_move(world: World, fam: Family) -> None:
    """After a backend left, clients whose entry did not change get the backend they had, without any flow to remember it."""
    backends = remotes(world, fam, 4)
    size = world.sizes.maglev_size
    row = world.service(fam, fam.vip, 80, TCP, backends, algorithm=MAGLEV)
    before = [backends[i % 4] for i in range(size)]
    after = [b if b is not backends[3] else backends[i % 3] for i, b in enumerate(before)]
    world.maglev(row, [b.id for b in before])
    first = choices(world, fam)
    world.forget_flows()
    world.maglev(row, [b.id for b in after])
    second = choices(world, fam)
    gone = backends[3].endpoint
    assert all(new == old for old, new in zip(first, second, strict=True) if old != gone)
    assert gone not in second


def test_weights_are_shares_of_the_table(world: World, fam: Family) -> None:
    """A backend with three quarters of the entries gets three quarters of 400 flows, within five deviations (8.66)."""
    backends = remotes(world, fam, 2)
    row = world.service(fam, fam.vip, 80, TCP, backends, algorithm=MAGLEV)
    world.maglev(row, [backends[0].id if i % 4 else backends[1].id for i in range(world.sizes.maglev_size)])
    found = Counter(choices(world, fam))
    assert abs(found[backends[0].endpoint] - 300) < 44


def test_maglev_is_the_same_for_the_protocols_own_flows(world: World, fam: Family) -> None:
    """A UDP client is mapped as deterministically as a TCP one."""
    backends = [world.backend(fam, fam.remote(n), 53, UDP) for n in range(1, 6)]
    row = world.service(fam, fam.vip, 53, UDP, backends, algorithm=MAGLEV)
    world.maglev(row, [backends[i % 5].id for i in range(world.sizes.maglev_size)])
    runs = []
    for _ in range(2):
        outs = [world.run(XDP, craft.frame(craft.udp(fam, *client(fam, n), fam.vip, 53))) for n in range(60)]
        runs.append([expect.destination(out) for out in outs])
        world.forget_flows()
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 5


@pytest.mark.parametrize("entry", [0, 999])
def test_maglev_table_with_a_backend_that_is_not_there(world: World, fam: Family, hook: str, entry: int) -> None:
    """A wrong entry never sends a packet anywhere that is not a backend."""
    backend = world.backend(fam, fam.remote(1), 8080)
    row = world.service(fam, fam.vip, 80, TCP, [backend], algorithm=MAGLEV)
    world.maglev(row, [entry] * world.sizes.maglev_size)
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert not out.forwarded or expect.destination(out) in (backend.endpoint, (fam.client, 40000))


def test_maglev_without_a_table_falls_back(world: World, fam: Family, hook: str) -> None:
    """The table is not written yet (or could not be): flows are still served."""
    backends = remotes(world, fam, 2)
    world.service(fam, fam.vip, 80, TCP, backends, algorithm=MAGLEV)
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert out.forwarded
    assert expect.destination(out) in {b.endpoint for b in backends}


def position(fam: Family, proto: int, client: tuple[str, int], frontend_port: int, size: int) -> int:
    """Return the entry of a Maglev table that a client is mapped to: it must be equal on nodes of all versions."""
    golden, end = 0x9E3779B97F4A7C15, (1 << 64) - 1
    raw = fam.packed(client[0])
    words = sum(int.from_bytes(raw[n : n + 4], "little") for n in range(0, len(raw), 4))
    ports = proto | int.from_bytes(frontend_port.to_bytes(2, "big"), "little") << 16
    ports |= int.from_bytes(client[1].to_bytes(2, "big"), "little") << 32
    mixed = words * golden & end
    mixed = (mixed ^ mixed >> 32 ^ ports) * golden & end
    mixed = (mixed ^ mixed >> 29) * 0x9FB21C651E98DF25 & end
    return (mixed >> 32) * size >> 32


def test_all_nodes_choose_alike(world: World, fam: Family, hook: str) -> None:
    """A client that comes by another node, of another version, gets the same backend: the positions are fixed."""
    size = world.sizes.maglev_size
    backends = remotes(world, fam, 7)
    row = world.service(fam, fam.vip, 80, TCP, backends, algorithm=MAGLEV)
    table = [backends[n * n % 7] for n in range(size)]
    world.maglev(row, [backend.id for backend in table])
    wanted = [table[position(fam, TCP, client(fam, n), 80, size)].endpoint for n in range(60)]
    assert choices(world, fam, hook, 60) == wanted


def test_affinity_to_the_nanosecond(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """With its last nanosecond the time-out is over; a tick before a new connection still goes to the same backend."""
    ticks = 1_000_000_000 // math.gcd(TICK_NS, 1_000_000_000)  # so many are whole seconds
    world = still_world.world
    backends = remotes(world, fam, 2)
    row = world.service(fam, fam.vip, 80, TCP, backends, affinity_s=ticks * TICK_NS // 1_000_000_000)
    ports = iter(range(40000, 40100))

    def choice() -> tuple[str, int]:
        world.forget_flows()  # they hold the only port
        out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, next(ports), fam.vip, 80)))
        return expect.destination(out)

    for n in (1, 2):
        world.slot(row, n, target=backends[0].id)
    assert choice() == backends[0].endpoint
    for n in (1, 2):  # where it would go without affinity
        world.slot(row, n, target=backends[1].id)
    for passed, backend in ((0, 0), (ticks - 1, 0), (ticks - 1, 0), (ticks, 1), (0, 1)):
        still_world.clock.pass_ticks(passed)
        assert choice() == backends[backend].endpoint, passed
