"""The State is compared with the objects of a new list."""

from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace

from lbagent.errors import TimedOut
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.family import Family
from lbagent.model.state import State
from lbagent.objects.records import EndpointSlice, ObjectChange, ObjectSnapshot, Service
from lbagent.objects.source import Missed
from lbagent.sync.object_verification import ObjectVerification
from tests.objects.kinds import kind_of
from tests.sync import rig
from tests.sync.rig import SMALL, ListSource, make, running


def service(number: int, **more: object) -> Service:
    return _of_source(rig.service(number, **more))


def endpoints(number: int, *hosts: int) -> EndpointSlice:
    return _of_source(rig.endpoints(number, *hosts))


def _of_source(obj):
    return replace(obj, origin=replace(obj.origin, source="list"))


class Relisting(ListSource):
    """A source whose origin has `origin`, and which gets no event of it."""

    def __init__(self) -> None:
        super().__init__()
        self.origin: dict[tuple[str, str], object] = {}
        self.heals = True
        self.away = ""
        self.lists = 0

    def put_unseen(self, *objects: object) -> None:
        self.origin |= {(kind_of(obj), obj.key): obj for obj in objects}  # type: ignore[attr-defined]

    async def find_missed(self) -> Missed:
        self.lists += 1
        if self.away:
            raise TimedOut(self.away)
        keys = sorted(self.origin.keys() | self.objects.keys())
        pairs = [(key, self.objects.get(key), self.origin.get(key)) for key in keys]
        changes = tuple(ObjectChange(*key, old, new) for key, old, new in pairs if old != new)  # type: ignore[arg-type]
        return Missed(changes, tuple(sorted({each.kind for each in changes})))

    def list_again(self, places: object) -> None:
        if self.heals:
            self.put(*self.origin.values())  # type: ignore[arg-type]
            self.drop(*[obj for key, obj in self.objects.items() if key not in self.origin])  # type: ignore[misc]


@pytest.fixture
async def world():
    source = Relisting()
    loop, target, _ = make(MemoryMaps(SMALL), source)
    async with running(loop):
        objects = [service(1), endpoints(1, 1, 2), service(2), endpoints(2, 1)]
        source.put_unseen(*objects)
        source.first_list(*objects)
        await loop.settled()
        yield source, loop, target


def verification(world, every_s: float = 0.0, **families) -> ObjectVerification:
    source, loop, _ = world
    return ObjectVerification(loop, [source], lambda: every_s, families)


async def test_nothing_differs(world) -> None:
    one = verification(world)
    assert (await one.look()).is_clean
    assert one.last_success > 1.7e9
    assert world[1].runners[0].object_differences == 0


async def test_what_was_missed_is_named_by_frontend_and_backend(world) -> None:
    source, loop, _ = world
    source.put_unseen(endpoints(1, 1, 9), service(3), endpoints(3, 1))
    del source.origin["Service", "default/s2"], source.origin["EndpointSlice", "default/s2-x"]
    found = await verification(world).look()
    assert sorted(map(str, found.differences)) == [
        "default/s1 10.96.0.1:80/TCP: missing: backend 10.1.1.9:8080/TCP",
        "default/s1 10.96.0.1:80/TCP: stale: backend 10.1.1.2:8080/TCP",
        "default/s2 10.96.0.2:80/TCP: stale: a frontend that no Service has any more",
        "default/s3 10.96.0.3:80/TCP: missing: no frontend for this port of the Service",
    ]
    assert found.missed == {"list": ("EndpointSlice", "Service")}
    assert loop.runners[0].object_differences == 4
    assert "default/s2" in {str(svc.name) for svc in loop.state.services}  # nothing was applied


async def test_a_setting_that_was_missed(world) -> None:
    world[0].put_unseen(service(1, affinity_timeout_s=60))
    (found,) = (await verification(world).look()).differences
    assert str(found) == "default/s1 10.96.0.1:80/TCP: differs: its settings are not those of the Service"


async def test_a_state_that_is_not_that_of_the_objects(world) -> None:
    """The source missed nothing: the State itself is stale."""
    source, loop, _ = world
    stale = loop.state
    source.put_unseen(endpoints(1, 1))
    source.put(endpoints(1, 1))
    await loop.settled()
    loop.state = stale
    found = await verification(world).look()
    assert [str(each) for each in found.differences] == [
        "default/s1 10.96.0.1:80/TCP: stale: backend 10.1.1.2:8080/TCP"
    ]
    assert found.missed == {}


async def test_a_change_during_the_comparison_is_no_difference(world) -> None:
    source, loop, _ = world
    one, stop = verification(world), asyncio.Event()
    resolve = loop.resolve_from_start

    async def slowly(objects: ObjectSnapshot, state: State) -> State:
        found = await resolve(objects, state)
        await asyncio.sleep(0.005)
        return found

    loop.resolve_from_start = slowly

    async def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            obj = endpoints(1, 1, number % 2 + 2)  # to and fro: two looks would find the same
            source.put_unseen(obj)
            source.put(obj)
            await asyncio.sleep(0)

    task = asyncio.create_task(churn())
    try:
        for _ in range(30):
            assert (await one.look()).is_clean
    finally:
        stop.set()
        await task


async def test_what_was_missed_and_came_meanwhile_is_no_difference(world) -> None:
    """The change arrives between the list and the comparison, and another one after it."""
    source, loop, _ = world
    source.put_unseen(endpoints(1, 7))
    missed = await source.find_missed()

    async def found_before() -> Missed:
        return missed

    source.find_missed = found_before
    source.put(endpoints(1, 8))
    assert (await verification(world).look()).differences == ()
    await loop.settled()
    assert "10.1.1.8:8080" in {str(each.address) for each in loop.state.backends.values()}


async def test_a_loop_that_makes_no_pass(world, monkeypatch) -> None:
    from tests.sync.rig import make_loop

    monkeypatch.setattr("lbagent.sync.object_verification.SETTLE_S", 0.05)
    source, _, _ = world
    with pytest.raises(TimedOut, match="not resolved in time"):
        await verification((source, make_loop([source]), None)).look()


async def test_backends_that_rest_are_no_difference(world) -> None:
    """An endpoint that is not ready keeps its entry for its flows; one resolved from nothing has none."""
    source, loop, _ = world
    whole = endpoints(1, 1, 2)
    resting = replace(whole, endpoints=(whole.endpoints[0], replace(whole.endpoints[1], ready=False, serving=False)))
    source.put_unseen(resting)
    source.put(resting)
    await loop.settled()
    (svc,) = (each for each in loop.state.services if str(each.name) == "default/s1" and not each.wildcard)
    assert len(svc.backends) == 2
    assert (await verification(world).look()).is_clean


async def test_a_backend_that_rests_at_one_frontend_and_serves_another_is_no_difference(world) -> None:
    """As with externalTrafficPolicy Local on a node without endpoints: the ClusterIP has the backend."""
    source, loop, _ = world
    local = service(3, external_local=True, external_ips=(bytes([192, 0, 2, 3]),))
    source.put_unseen(local, endpoints(3, 1))
    source.put(local, endpoints(3, 1))  # when its frontends are resolved, its backend is new
    await loop.settled()
    mine = [svc for svc in loop.state.services if str(svc.name) == "default/s3" and not svc.wildcard]
    assert sorted(len(svc.backends) for svc in mine) == [0, 1, 1]  # outside, and twice inside
    assert (await verification(world).look()).differences == ()
    source.put_unseen(service(4), endpoints(4, 1))
    (found, *_) = (await verification(world).look()).differences
    assert str(found) == "default/s4 10.96.0.4:80/TCP: missing: no frontend for this port of the Service"


async def test_frontends_of_the_family_of_a_data_plane(world) -> None:
    source, _, target = world
    source.put_unseen(endpoints(1, 1))
    one = verification(world, **{target.name: frozenset((Family.IPV6,)), "other": frozenset((Family.IPV4,))})
    found = await one.look()
    assert one.at_frontends_of(target.name, found) == []
    assert len(one.at_frontends_of("other", found)) == 1


async def test_by_itself_it_repairs_and_says_so(world, caplog) -> None:
    source, loop, _ = world
    one = verification(world, 0.05)
    task = asyncio.create_task(one.run())
    try:
        with caplog.at_level(logging.WARNING):
            source.put_unseen(endpoints(1, 7))
            async with asyncio.timeout(10):
                while one.repaired.is_clean:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert {str(each.address) for each in loop.state.backends.values()} >= {"10.1.1.7:8080"}
        assert one.repaired.missed == {"list": ("EndpointSlice",)}  # a condition that has ended
        assert loop.runners[0].object_differences == 0
        (line,) = [each for each in caplog.records if "missed" in each.message]
        assert line.list == "EndpointSlice"
    finally:
        task.cancel()


async def test_what_cannot_be_listed_anew_stays_a_difference(world) -> None:
    source, loop, _ = world
    source.heals = False
    source.put_unseen(endpoints(1, 7))
    one = verification(world)
    await one.look()
    assert not (await one.repair()).is_clean
    assert one.repaired.is_clean
    assert loop.runners[0].object_differences == 3


async def test_without_an_interval_nothing_is_listed(world, monkeypatch) -> None:
    monkeypatch.setattr("lbagent.sync.object_verification.OFF_S", 0.01)
    task = asyncio.create_task(verification(world, 0).run())
    await asyncio.sleep(0.1)
    task.cancel()
    assert world[0].lists == 0
    assert verification(world, 0).success_shown is None  # no alert
    assert verification(world, 60).success_shown == 0.0


async def test_a_source_that_is_away(world) -> None:
    one = verification(world)
    await one.look()
    before = one.last_success
    world[0].away = "the API server does not answer"
    with pytest.raises(TimedOut):
        await one.look()
    assert one.last_success == before
