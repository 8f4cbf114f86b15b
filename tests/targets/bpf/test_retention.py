"""A restart while a source has no complete list: all other sources are served, and nothing is removed that may belong to it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.service import RESTORED
from lbagent.objects.records import OPERATOR, Origin, StateOverride
from lbagent.targets.bpf import bpf_target
from lbagent.targets.bpf.restore import restore
from lbagent.testing.faulty_maps import FaultyMaps
from tests.sync.rig import SMALL, ListSource, endpoints, make, running, service
from tests.targets.bpf.plans import MAINTENANCE, backends_of


async def serve_first(maps, *objects) -> None:
    """Let an earlier agent write these."""
    source = ListSource("first")
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(*objects)
        await target.ready.wait()


def of(maps, *numbers: int) -> list[str]:
    """Return the dump lines about these services, their ids and flags included."""
    return [line for line in dump(maps) if any(f"10.96.0.{n}:" in line or f"10.1.{n}." in line for n in numbers)]


def hosts(maps, number: int) -> set[str]:
    found = backends_of(maps, L3n4Addr(bytes((10, 96, 0, number)), 80)) or set()
    return {str(int(text[6:8], 16)) for text in found}


async def test_what_trusted_sources_say_is_written_and_all_else_stays() -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(
        maps,
        service(1),
        endpoints(1, 1, 2),
        service(2, affinity_timeout_s=60),
        endpoints(2, 1, 2),
        service(3),
        endpoints(3, 1),
    )
    before = of(maps, 2, 3)
    good, doubtful = ListSource("good"), ListSource("folder")
    doubtful.trusted = False
    loop, target, _ = make(maps, good, doubtful)
    async with running(loop):
        good.first_list(service(1), endpoints(1, 2, 3), service(4), endpoints(4, 1))
        doubtful.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        await loop.settled()
        assert hosts(maps, 1) == {"2", "3"}, "a Service that is known whole is written whole"
        assert hosts(maps, 4) == {"1"}
        assert of(maps, 2, 3) == before
        assert check(maps) == []
        assert not target.ready.is_set()
        assert "folder" in target.waiting
        assert "2 frontends" in target.waiting
        names = {str(svc.frontend): str(svc.name) for svc in target.state.services if not svc.wildcard}
        assert names == {
            "10.96.0.1:80": "default/s1", "10.96.0.4:80": "default/s4", "10.96.0.2:80": str(RESTORED), "10.96.0.3:80": str(RESTORED),
        }  # fmt: skip
        good.drop(service(4), endpoints(4, 1))  # it is known whose it was
        await loop.settled()
        assert of(maps, 4) == []
        assert of(maps, 2, 3) == before

        doubtful.trusted = True
        doubtful.put(service(2, affinity_timeout_s=60), endpoints(2, 1, 2))
        await asyncio.wait_for(target.ready.wait(), 5)
        assert target.waiting == ""
        assert of(maps, 2) == [line for line in before if "10.96.0.2" in line or "10.1.2." in line], "with its ids"
        assert of(maps, 3) == []
        assert check(maps, settled=True) == []


async def test_what_a_trusted_source_takes_away_itself_goes() -> None:
    """It was known whole for a moment: from then on its source alone decides, also when that takes it away or scales to nothing."""
    maps = MemoryMaps(SMALL)
    await serve_first(maps, *[obj for n in (1, 2, 3, 4) for obj in (service(n), endpoints(n, 1, 2))])
    before = of(maps, 4)
    good, doubtful = ListSource("good"), ListSource("folder")
    doubtful.trusted = False
    loop, target, _ = make(maps, good, doubtful)
    async with running(loop):
        good.first_list(*[obj for n in (1, 2) for obj in (service(n), endpoints(n, 1))], service(3), endpoints(3))
        doubtful.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        assert (hosts(maps, 1), hosts(maps, 2), hosts(maps, 3)) == ({"1"}, {"1"}, set()), (
            "a slice without endpoints is known"
        )
        good.drop(service(1), endpoints(1, 1))
        good.put(endpoints(2))
        await loop.settled()
        assert of(maps, 1) == []
        assert hosts(maps, 2) == set()
        good.drop(endpoints(2), endpoints(3))
        await loop.settled()
        assert (hosts(maps, 2), hosts(maps, 3)) == (set(), set())
        assert of(maps, 4) == before
        assert check(maps) == []


async def test_what_a_list_holds_counts_while_what_it_lacks_is_in_doubt() -> None:
    """A list after a restart lacks too many Services at once: those stay, all others go on as in any agent."""
    maps = MemoryMaps(SMALL)
    await serve_first(maps, *[obj for n in (1, 2, 3, 4) for obj in (service(n), endpoints(n, 1, 2))])
    before = of(maps, 4)
    source = ListSource("kube")
    source.trusted, source.listed = False, True
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(*[obj for n in (1, 2) for obj in (service(n), endpoints(n, 1))], service(3))
        await asyncio.wait_for(target.first_pass.wait(), 5)
        assert (hosts(maps, 1), hosts(maps, 2)) == ({"1"}, {"1"})
        assert hosts(maps, 3) == {"1", "2"}, "its slices are not there yet"
        source.put(endpoints(1, 3))
        source.drop(service(2), endpoints(2, 1))
        await loop.settled()
        assert hosts(maps, 1) == {"3"}
        assert of(maps, 2) == []
        assert of(maps, 4) == before
        assert not target.ready.is_set()
        assert check(maps) == []


async def test_a_service_without_its_endpoints_keeps_those_it_had() -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1, 2))
    before = dump(maps)
    good, doubtful = ListSource("good"), ListSource("folder")
    doubtful.trusted = False
    loop, target, _ = make(maps, good, doubtful)
    async with running(loop):
        good.first_list(service(1))
        doubtful.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        assert dump(maps) == before
        assert [str(svc.name) for svc in target.state.services] == ["default/s1"] * 2
        doubtful.trusted = True
        doubtful.put(endpoints(1, 2))
        await asyncio.wait_for(target.ready.wait(), 5)
        assert hosts(maps, 1) == {"2"}


async def test_a_doubtful_source_adds_and_changes_what_it_knows() -> None:
    """Half of its files are back: what they hold counts, what they do not hold stays."""
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1, 2), service(2), endpoints(2, 1))
    before = of(maps, 2)
    source = ListSource("folder")
    source.trusted = False
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 2, 3))
        await asyncio.wait_for(target.first_pass.wait(), 5)
        assert hosts(maps, 1) == {"1", "2", "3"}
        assert of(maps, 2) == before
        assert check(maps) == []
        source.trusted = True
        source.put()
        await asyncio.wait_for(target.ready.wait(), 5)
        assert hosts(maps, 1) == {"2", "3"}
        assert of(maps, 2) == []
        assert check(maps, settled=True) == []


async def test_the_operator_rules_over_what_was_restored() -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1, 2))
    operator, doubtful = ListSource("operator"), ListSource("folder")
    doubtful.trusted = False
    loop, target, _ = make(maps, operator, doubtful)
    async with running(loop):
        operator.first_list()
        doubtful.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        backend = next(address for address in target.state.backends if address.address[-1] == 1)
        operator.put(StateOverride("x", backend, BackendState.MAINTENANCE, Origin(source=OPERATOR)))
        await loop.settled()
        assert hosts(maps, 1) == {"2"}
        assert target.state.backends[backend].state is BackendState.MAINTENANCE
        operator.put(StateOverride("x", backend, BackendState.ACTIVE, Origin(source=OPERATOR)))
        await loop.settled()
        assert hosts(maps, 1) == {"1", "2"}
        assert check(maps) == []


async def test_before_the_first_list_the_agent_shows_what_the_maps_serve() -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1, 2))
    again = FaultyMaps(maps)
    source = ListSource("slow")
    loop, target, _ = make(again, source)
    async with running(loop):
        await asyncio.sleep(0.02)
        shown = target.current_state
        assert [str(svc.name) for svc in shown.services] == [str(RESTORED)] * 2
        assert len(shown.backends) == 2
        assert again.writes == 0
        source.first_list(service(1), endpoints(1, 1, 2))
        await asyncio.wait_for(target.ready.wait(), 5)
        assert {str(svc.name) for svc in target.current_state.services} == {"default/s1"}
    assert again.writes == 0


async def test_kept_frontends_follow_the_network() -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1))
    source = ListSource("folder")
    source.trusted = False
    loop, target, paths = make(maps, source)
    async with running(loop):
        source.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        paths.info = paths.info.__class__(b"\x0a\0\0\1", 7, 1400, False, False)
        target.paths_changed()
        await loop.settled()
        with maps.window("lb4_path", 0, 1 << 10) as window:
            assert sum(int.from_bytes(window[at + 12 : at + 14], "little") == 7 for at in range(0, 1 << 10, 16)) == 1
    assert check(maps) == []


async def test_maps_that_cannot_be_read_when_the_doubt_ends_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1), service(2), endpoints(2, 1))
    source = ListSource("folder")
    source.trusted = False
    loop, target, _ = make(maps, source)
    tries = []

    def unreadable(given):  # type: ignore[no-untyped-def]
        tries.append(given)
        if len(tries) < 3:
            raise KernelError("lookup", 12, "lb4_service")
        return restore(given)

    async with running(loop):
        source.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        monkeypatch.setattr(bpf_target, "restore", unreadable)
        source.trusted = True
        source.put(service(1), endpoints(1, 1))
        await asyncio.wait_for(target.ready.wait(), 5)
        assert len(tries) == 3
        assert of(maps, 2) == []
        assert check(maps, settled=True) == []


async def test_what_is_kept_keeps_its_overrides_while_the_maps_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1, 2))
    operator, folder = ListSource("operator"), ListSource("folder")
    folder.trusted = False
    loop, target, _ = make(maps, operator, folder)
    readable = False

    def read(given):  # type: ignore[no-untyped-def]
        if readable:
            return restore(given)
        raise KernelError("lookup", 12, "lb4_service")

    async with running(loop):
        operator.first_list()
        folder.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        backend = next(address for address in target.state.backends if address.address[-1] == 1)
        operator.put(StateOverride("x", backend, BackendState.MAINTENANCE, Origin(source=OPERATOR)))
        await loop.settled()
        assert hosts(maps, 1) == {"2"}
        monkeypatch.setattr(bpf_target, "restore", read)
        folder.trusted = True
        folder.put(service(2), endpoints(2, 1))
        await loop.settled()
        assert "could not be read again" in target.waiting
        assert "lookup" in target.error
        assert hosts(maps, 1) == {"2"}
        assert hosts(maps, 2) == {"1"}
        readable = True
        await asyncio.wait_for(target.ready.wait(), 5)
        assert of(maps, 1) == []
        assert check(maps, settled=True) == []


objects = st.dictionaries(st.integers(1, 5), st.frozensets(st.integers(1, 4), min_size=1), max_size=5)


def listed(of_source) -> list:  # type: ignore[no-untyped-def,type-arg]
    return [
        obj
        for number, found in sorted(of_source.items())
        for obj in (service(number), endpoints(number, *sorted(found)))
    ]


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(objects, objects, objects, objects, objects)
def test_whatever_is_known_of_it_nothing_of_a_missing_source_goes(first_a, first_b, now_a, half_b, now_b):
    """Source a holds Services 1-5, b 6-10. b is missing at first, tells a part, then all; the maps are whole at any moment."""
    first_b, half_b, now_b = (
        {number + 5: found for number, found in each.items()} for each in (first_b, half_b, now_b)
    )

    async def story() -> None:
        inner = MemoryMaps(SMALL)
        await serve_first(inner, *listed(first_a | first_b))

        def look(number: int, name: str) -> None:
            assert check(inner) == [], (number, name)
            for which, found in first_b.items() if target.waiting else ():
                one = hosts(inner, which)  # while slots are rewritten a backend may have none for a moment
                assert one, (number, name)
                assert one <= set(map(str, found | half_b.get(which, frozenset()))), (number, name)

        a, b = ListSource("a"), ListSource("b")
        b.trusted = False
        a_and_b, target, _ = make(FaultyMaps(inner, after=look), a, b)
        async with running(a_and_b) as task:

            async def settled() -> None:
                waiter = asyncio.create_task(a_and_b.settled())
                await asyncio.wait({task, waiter}, timeout=5, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
                assert waiter.done()

            a.first_list(*listed(now_a))
            b.first_list()
            await settled()
            b.put(*listed(half_b))
            await settled()
            for number in range(1, 6):
                assert hosts(inner, number) == set(map(str, now_a.get(number, first_a.get(number, ())))), number
            for number in range(6, 11):
                assert hosts(inner, number) == set(
                    map(str, first_b.get(number, frozenset()) | half_b.get(number, frozenset()))
                )
            gone = [obj for obj in listed(half_b) if obj not in listed(now_b)]
            b.trusted = True
            b.drop(*[obj for obj in gone if obj.key not in {each.key for each in listed(now_b)}])
            b.put(*listed(now_b))
            await settled()
            assert target.ready.is_set()
            for number, found in (now_a | now_b).items():
                assert hosts(inner, number) == set(map(str, found)), number
            assert {int(str(svc.name).rpartition("s")[2]) for svc in target.state.services} == {*now_a, *now_b}
        assert check(inner, settled=True) == []

    asyncio.run(story())


async def test_backends_without_a_slot_stay_as_well() -> None:
    maps = MemoryMaps(SMALL)
    source = ListSource("first")
    loop, target, _ = make(maps, source)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1, 2))
        await target.ready.wait()
        resting = next(address for address in target.state.backends if address.address[-1] == 1)
        source.put(StateOverride("x", resting, MAINTENANCE, Origin(source=OPERATOR)))
        await loop.settled()
    before = dump(maps)
    assert sum(line.startswith("BE") for line in before) == 2
    doubtful = ListSource("folder")
    doubtful.trusted = False
    loop, target, _ = make(maps, doubtful)
    async with running(loop):
        doubtful.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        assert target.retained == 1
        assert dump(maps) == before


async def test_the_doubt_lasts_when_nothing_is_left_to_keep(caplog: pytest.LogCaptureFixture) -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1))
    good, doubtful = ListSource("good"), ListSource("folder")
    doubtful.trusted = False
    loop, target, _ = make(maps, good, doubtful)
    async with running(loop):
        good.first_list(service(1), endpoints(1, 1))
        doubtful.first_list()
        await asyncio.wait_for(target.first_pass.wait(), 5)
        good.put(endpoints(1, 1, 2))
        await loop.settled()
        good.drop(service(1), endpoints(1, 1, 2))
        await loop.settled()
        good.put(service(3))
        await loop.settled()
        assert not target.ready.is_set()
        assert "folder" in target.waiting
        doubtful.trusted = True
        doubtful.put()
        await asyncio.wait_for(target.ready.wait(), 5)
    said = [record for record in caplog.records if record.message == "nothing is removed yet"]
    assert len(said) == len({vars(record)["reason"] for record in said}) >= 1


def remembering(*objects) -> ListSource:  # type: ignore[no-untyped-def]
    """A source without its folder, which has these from an earlier agent."""
    source = ListSource("folder")
    source.trusted, source.remembered = False, True
    source.remembered_objects = objects  # type: ignore[attr-defined]
    return source


async def resumed(maps, source: ListSource, *others: ListSource) -> list[str]:
    """Start an agent over the maps; return what they hold after its first pass."""
    loop, target, _ = make(maps, source, *others)
    async with running(loop):
        source.first_list(*source.remembered_objects)  # type: ignore[attr-defined]
        await asyncio.wait_for(target.first_pass.wait(), 5)
        await loop.settled()
        assert check(maps) == []
        source.known = {str(svc.frontend): str(svc.name) for svc in target.state.services if not svc.wildcard}  # type: ignore[attr-defined]
        return dump(maps)


@pytest.mark.parametrize("then", [(2,), (), (2, 4)], ids=["fewer", "none", "another"])
async def test_what_a_source_remembers_changes_nothing_that_the_maps_hold(then: tuple[int, ...]) -> None:
    """A copy that is older than the maps: its endpoints of then do not come back, and its settings do not hold. Its names do."""
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1, affinity_timeout_s=60), endpoints(1, *then), service(2), endpoints(2, 1))
    before = dump(maps)
    source = remembering(service(1), endpoints(1, 1, 2, 3), service(2), endpoints(2, 1))
    assert await resumed(maps, source) == before
    assert source.known == {"10.96.0.1:80": "default/s1", "10.96.0.2:80": "default/s2"}  # type: ignore[attr-defined]


async def test_a_service_that_was_deleted_does_not_come_back_from_a_copy() -> None:
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(2), endpoints(2, 1))
    before = dump(maps)
    assert await resumed(maps, remembering(service(1), endpoints(1, 1), service(2), endpoints(2, 1))) == before


async def test_endpoints_of_another_source_count_beside_a_remembered_service() -> None:
    """They are known now; the Service has a name, and the settings of the maps."""
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 1, 2))
    good = ListSource("good")
    source = remembering(service(1, affinity_timeout_s=60))
    loop, target, _ = make(maps, good, source)
    async with running(loop):
        good.first_list(endpoints(1, 2, 3))
        source.first_list(service(1, affinity_timeout_s=60))
        await asyncio.wait_for(target.first_pass.wait(), 5)
        await loop.settled()
        assert hosts(maps, 1) == {"1", "2", "3"}, "nothing is removed while a source is missing"
        assert not any("affinity" in line.lower() for line in dump(maps))


async def test_a_trusted_service_with_remembered_endpoints() -> None:
    """Its settings are those of now, its backends those of the maps."""
    maps = MemoryMaps(SMALL)
    await serve_first(maps, service(1), endpoints(1, 2))
    good, source = ListSource("good"), remembering(endpoints(1, 1, 2, 3))
    loop, target, _ = make(maps, good, source)
    async with running(loop):
        good.first_list(service(1, affinity_timeout_s=60))
        source.first_list(endpoints(1, 1, 2, 3))
        await asyncio.wait_for(target.first_pass.wait(), 5)
        await loop.settled()
        assert hosts(maps, 1) == {"2"}
        (svc,) = [svc for svc in target.state.services if not svc.wildcard]
        assert svc.session_affinity_timeout_s == 60
        assert check(maps) == []
