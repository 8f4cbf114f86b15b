"""The keeper of neighbours: which ones it requests, how often, and whose marks `cleanup` takes away."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest

from lbagent.maps.memory_maps import MemoryMaps
from lbagent.net import neighbours
from lbagent.net.neighbours import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    MAX_MANAGED,
    AskPacer,
    KernelNeighbours,
    NeighbourKeeper,
    release,
)
from lbagent.net.paths import Hop
from lbagent.targets.bpf.neighbour_map import NeighbourMap
from tests.lab.netns import Namespace, run, veth
from tests.net.builders import ip

HOP: Hop = (7, ip("10.0.0.1"))


def test_pauses_double_and_end_at_the_longest() -> None:
    pacer, now, pauses = AskPacer(), 0.0, []
    for _ in range(10):
        assert pacer.due_in(HOP, now) == 0
        pacer.ask(HOP, now)
        pauses.append(pacer.due_in(HOP, now))
        now += pauses[-1]
    assert pauses[:3] == pytest.approx([FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S])
    assert pauses[-1] == pytest.approx(LAST_PAUSE_S)


def test_a_neighbour_that_was_kept_for_long_is_asked_for_at_once() -> None:
    pacer = AskPacer()
    for now in (0.0, 1.0, 2.0):
        pacer.ask(HOP, now)
    pacer.ask(HOP, 100.0)
    assert pacer.due_in(HOP, 100.0) == pytest.approx(FIRST_PAUSE_S)
    pacer.forget(())
    assert pacer.due_in(HOP, 100.0) == 0


# --- against a kernel that is played ---


class Played:
    """Takes the requests, and keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.managed: set[Hop] = set()
        self.resolved: dict[Hop, bytes] = {}
        self.permanent: set[Hop] = set()
        self.carriers = {7}
        self.asked: list[Hop] = []
        self.refuses = 0
        monkeypatch.setattr(neighbours, "_request", self._request)
        monkeypatch.setattr(neighbours, "_flags", self._flags)
        monkeypatch.setattr(neighbours, "AsyncIPRoute", Played.NoSocket)

    class NoSocket:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            pass

    async def _request(self, _ipr: object, hop: Hop, *, managed: bool) -> int:
        if managed:
            self.asked.append(hop)
        if self.refuses:
            return self.refuses
        (self.managed.add if managed else self.managed.discard)(hop)
        return 0

    async def _flags(self, _ipr: object, hop: Hop, name: str) -> int:
        return int(hop in self.managed) if name == "NDA_FLAGS_EXT" else 0

    def view(self) -> KernelNeighbours:
        return KernelNeighbours(self.resolved, set(self.managed), self.permanent, self.carriers)


def hops(count: int) -> list[Hop]:
    return [(7, ip(f"10.0.{i >> 8}.{i & 255}")) for i in range(count)]


def test_the_first_ones_are_kept_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, keeper = Played(monkeypatch), NeighbourKeeper(NeighbourMap(MemoryMaps()))
    wanted = hops(MAX_MANAGED + 40)
    asyncio.run(keeper.keep(wanted, kernel.view(), 0.0))
    assert kernel.managed == set(wanted[:MAX_MANAGED])
    assert keeper.problems()[0][1].startswith("40 neighbours")
    asyncio.run(keeper.keep(wanted[60:], kernel.view(), 1.0))  # those that go make room for those that come
    assert kernel.managed == set(wanted[60:])
    assert keeper.problems() == []


def test_a_full_table_of_the_kernel_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, keeper = Played(monkeypatch), NeighbourKeeper(NeighbourMap(MemoryMaps()))
    kernel.refuses = errno.ENOBUFS
    now, ended = 0.0, 60.0
    while now < ended:
        pause = asyncio.run(keeper.keep([HOP], kernel.view(), now))
        assert pause is not None
        assert pause >= FIRST_PAUSE_S / 2
        now += pause
    assert 5 <= len(kernel.asked) <= 15
    assert "neighbour table is full" in keeper.problems()[0][1]
    kernel.refuses = 0
    asyncio.run(keeper.keep([HOP], kernel.view(), now + LAST_PAUSE_S))
    assert kernel.managed == {HOP}
    assert keeper.problems() == []
    assert asyncio.run(keeper.keep([HOP], kernel.view(), now + 99)) is None


def test_a_device_without_carrier_is_not_asked_and_at_once_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, keeper = Played(monkeypatch), NeighbourKeeper(NeighbourMap(MemoryMaps()))
    for turn in range(8):  # longer pauses from link to link would be no good
        kernel.carriers = {7}
        asyncio.run(keeper.keep([HOP], kernel.view(), turn / 10))
        assert kernel.managed == {HOP}
        kernel.carriers, kernel.managed = set(), set()
        assert asyncio.run(keeper.keep([HOP], kernel.view(), turn / 10 + 0.05)) is None
    assert len(kernel.asked) == 8


def test_a_kernel_without_managed_entries_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, keeper = Played(monkeypatch), NeighbourKeeper(NeighbourMap(MemoryMaps()))
    asked = []

    async def request(_ipr: object, hop: Hop, *, managed: bool) -> int:  # Linux 5.15 passes over the attribute
        asked.append(managed)
        kernel.resolved[hop] = b"\2\0\0\0\0\1"
        return 0

    monkeypatch.setattr(neighbours, "_request", request)
    pause = asyncio.run(keeper.keep([HOP], kernel.view(), 0.0))
    assert (keeper.managed, asked) == (False, [True, False])
    assert pause is not None
    asyncio.run(keeper.keep([HOP], kernel.view(), 5.0))
    assert len(asked) == 2  # resolved, and asked for a moment ago
    asyncio.run(keeper.keep([HOP], kernel.view(), 25.0))
    assert len(asked) == 3
    kernel.resolved.clear()
    asyncio.run(keeper.keep([HOP], kernel.view(), 26.0))
    assert len(asked) == 4


def test_a_restarted_agent_releases_what_nobody_wants_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, maps = Played(monkeypatch), MemoryMaps()
    asyncio.run(NeighbourKeeper(NeighbourMap(maps)).keep([HOP, (7, ip("fd00::1"))], kernel.view(), 0.0))
    assert NeighbourMap(maps).read() == {HOP, (7, ip("fd00::1"))}
    kernel.asked.clear()
    asyncio.run(NeighbourKeeper(NeighbourMap(maps)).keep([HOP], kernel.view(), 1.0))
    assert kernel.managed == {HOP} == NeighbourMap(maps).read()
    assert kernel.asked == []


# --- against the real one ---


@pytest.fixture
def node() -> Iterator[Namespace]:
    node, peer = Namespace("neigh"), None
    try:
        peer = Namespace("neighpeer")
        veth(node, "v0", peer, "v1")
        node.ip("addr add 10.9.0.1/24 dev v0", "addr add fd09::1/64 dev v0 nodad")
        peer.ip("addr add 10.9.0.2/24 dev v1", "addr add 10.9.0.3/24 dev v1", "addr add fd09::2/64 dev v1 nodad")
        yield node
    finally:
        node.delete()
        if peer:
            peer.delete()


def view(node: Namespace) -> KernelNeighbours:
    """What `ip` says of the neighbours behind v0."""
    index = node.ifindex("v0")
    found = json.loads(run("ip", "-n", node.name, "-d", "-j", "neigh", "show", "dev", "v0"))
    of = {(index, ip(item["dst"])): item for item in found}
    return KernelNeighbours(
        {hop: b"" for hop, item in of.items() if "lladdr" in item},
        {hop for hop, item in of.items() if "managed" in item},
        {hop for hop, item in of.items() if "PERMANENT" in item.get("state", ())},
        {index},
    )


def in_node(node: Namespace, steps: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await steps()

    with node.entered():
        asyncio.run(main())


@pytest.mark.root
def test_entries_are_managed_and_released(node: Namespace) -> None:
    async def steps() -> None:
        index = node.ifindex("v0")
        keeper = NeighbourKeeper(NeighbourMap(MemoryMaps()))
        near, near6 = (index, ip("10.9.0.2")), (index, ip("fd09::2"))
        await keeper.keep([near, near6], view(node), 0.0)
        if not keeper.managed:
            pytest.skip("Linux 5.16 has managed entries")
        assert view(node).managed == {near, near6}
        await keeper.keep([near, (99999, ip("10.8.0.1"))], view(node), 1.0)  # a device that is gone is no error
        assert view(node).managed == {near}

    in_node(node, steps)


@pytest.mark.root
def test_a_configured_neighbour_stays_what_it_is(node: Namespace) -> None:
    node.ip("neigh add 10.9.0.5 lladdr 02:00:00:00:00:05 nud permanent dev v0")

    async def steps() -> None:
        hop = (node.ifindex("v0"), ip("10.9.0.5"))
        unaware = view(node)
        await NeighbourKeeper(NeighbourMap(MemoryMaps())).keep([hop], unaware, 0.0)
        late = KernelNeighbours(unaware.resolved, unaware.managed, (), unaware.carriers)  # its event is on the way
        await NeighbourKeeper(NeighbourMap(MemoryMaps())).keep([hop], late, 0.0)
        assert "PERMANENT" in run("ip", "-n", node.name, "neigh", "show", "10.9.0.5")

    in_node(node, steps)


@pytest.mark.root
def test_two_agents_release_their_own_alone(node: Namespace) -> None:
    async def steps() -> None:
        index = node.ifindex("v0")
        one, both, other = ((index, ip(address)) for address in ("10.9.0.2", "10.9.0.3", "fd09::2"))
        first, second = MemoryMaps(), MemoryMaps()
        keeper = NeighbourKeeper(NeighbourMap(second))
        await NeighbourKeeper(NeighbourMap(first)).keep([one, both], view(node), 0.0)
        await keeper.keep([both, other], view(node), 0.0)
        if not keeper.managed:
            pytest.skip("Linux 5.16 has managed entries")
        before = view(node).resolved.keys()
        assert await release(NeighbourMap(first).read()) == {one, both}
        assert view(node).managed == {other}
        assert view(node).resolved.keys() >= before  # nothing is deleted: the other one may be sending there
        await keeper.keep([both, other], view(node), 1.0)
        assert view(node).managed == {both, other}

    in_node(node, steps)
