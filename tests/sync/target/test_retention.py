"""A restart while a source has no complete list: all other sources are served, and nothing is removed that may belong to it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lbagent.errors import KernelError
from lbagent.maps.consistency import check
from lbagent.maps.dump import dump
from lbagent.maps.memory_maps import FaultyMaps, MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, SVC, Algorithm, ServiceName
from lbagent.model.state import State
from lbagent.objects.records import OPERATOR, Origin, StateOverride
from lbagent.sync.target import bpf_target
from lbagent.sync.target.restore import restore
from lbagent.sync.target.retention import RESTORED, Retention, restored_state
from lbagent.sync.target_protocol import Provenance
from tests.sync.rig import SMALL, ListSource, endpoints, make, running, service
from tests.sync.target import plans
from tests.sync.target.plans import ACTIVE, MAINTENANCE, QUARANTINED, TERMINATING, Node, backends_of, states
from tests.sync.target.test_plan_order import copy_of


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(states())
def test_what_is_read_back_as_services_is_what_is_there(services):
    """All that the maps say of a frontend survives: as a State it needs no write, but for backends that rest."""
    start = Node()
    start.serve(*services)
    before = dump(start.maps)
    node = Node(copy_of(start.maps))
    node.restart()
    node.shadow.keep_unreferenced()
    found = restored_state(node.shadow, "me")
    assert {svc.frontend for svc in found.services} == {svc.frontend for svc in services}
    for svc in found.services:
        old = start.state.by_frontend[svc.frontend]
        assert (svc.id, svc.flags, svc.algorithm, svc.wildcard, svc.no_local_backend and bool(svc.id)) == (
            old.id, old.flags, old.algorithm, old.wildcard, old.no_local_backend,
        )  # fmt: skip
        assert [b.address for b in svc.selectable] == [b.address for b in old.selectable]
        assert [b.address for b in svc.unselectable] == [b.address for b in old.unselectable]
        assert svc.affinity_timeout_s == old.affinity_timeout_s
    node.want(*found.services)
    done = node.sync()
    assert done.complete
    assert {name for name in done.written if not name.endswith(("_path", "lb_filter"))} == set(), done.written
    assert dump(node.maps) == before


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


# --- what is kept, by itself ---


def known_to(*services, whole: bool = False) -> Provenance:
    """Return the provenance of services of which an untrusted source may hold a part (or, `whole`, none)."""
    names = () if whole else tuple(str(svc.name) for svc in services)
    return Provenance(("folder",), names, (), {})


def kept(*found, overrides=None, known=(), whole: bool = False) -> dict[str, SVC]:
    """Return what a State of `known` services becomes beside what was found in the maps."""
    held = Retention({svc.frontend: svc for svc in found}, ("folder",))
    provenance = replace(known_to(*known, whole=whole), overrides=overrides or {})
    return {str(svc.frontend): svc for svc in held.add_to(State(1, tuple(known)), provenance).services}


def texts(backends) -> list[str]:
    return [str(backend.address) for backend in backends]


def test_the_reason_names_sources_and_what_is_kept() -> None:
    held = Retention({}, ("folder", "other"))
    assert held.reason == "folder, other has given no complete list yet: nothing is removed until it has"
    held.sources, held.kept = (), 2
    assert held.reason == (
        "the maps could not be read again: nothing is removed until they can;"
        " 2 frontends that no object names stay as they are in the maps"
    )


def test_a_service_known_whole_takes_both_its_rows_with_it() -> None:
    """The row of the other scope is one of its own, and goes where it needs none any more."""
    outer = plans.service("10.96.0.1:80", plans.backend("10.244.1.1:80"), name=ServiceName("default", "web"))
    inner = plans.service("10.96.0.1:80/i", plans.backend("10.244.1.2:80"))
    other = plans.service("10.96.0.2:80/i", plans.backend("10.244.1.2:80"))
    assert kept(outer, inner, other, known=[outer], whole=True).keys() == {"10.96.0.1:80", "10.96.0.2:80/i"}
    assert kept(outer, inner, known=[outer]).keys() == {"10.96.0.1:80", "10.96.0.1:80/i"}


def test_terminating_backends_stand_behind_active_ones_and_before_nothing() -> None:
    name = ServiceName("default", "web")
    dying = [plans.backend(f"10.244.1.{n}:80", plans.TERMINATING) for n in (3, 1)]
    active = plans.backend("10.244.1.2:80")
    (svc,) = kept(
        plans.service("10.96.0.1:80", dying[0]), known=[plans.service("10.96.0.1:80", dying[1], name=name)]
    ).values()
    assert texts(svc.selectable) == ["10.244.1.1:80", "10.244.1.3:80"], "the only ones there are, by address"
    assert svc.unselectable == ()
    (svc,) = kept(
        plans.service("10.96.0.1:80", active), known=[plans.service("10.96.0.1:80", dying[1], name=name)]
    ).values()
    assert (texts(svc.selectable), texts(svc.unselectable)) == (["10.244.1.2:80"], ["10.244.1.1:80"])


@pytest.mark.parametrize(
    ("states", "selectable", "unselectable", "slotless"),
    [
        ((TERMINATING, MAINTENANCE), [1], [], [2]),
        ((TERMINATING, ACTIVE), [2], [1], []),
        ((QUARANTINED, ACTIVE), [2], [1], []),
        ((MAINTENANCE, MAINTENANCE), [], [], [1, 2]),
    ],
)
def test_states_the_operator_sets_for_what_is_kept(states, selectable, unselectable, slotless) -> None:
    found = plans.service("10.96.0.1:80", plans.backend("10.244.1.1:80"), plans.backend("10.244.1.2:80"))
    overrides = {backend.address: state for backend, state in zip(found.selectable, states, strict=True)}
    (svc,) = kept(found, overrides=overrides).values()
    for group, numbers in ((svc.selectable, selectable), (svc.unselectable, unselectable), (svc.slotless, slotless)):
        assert texts(group) == [f"10.244.1.{n}:80" for n in numbers]
    assert {backend.address: backend.state for backend in svc.backends} == overrides


def test_slots_without_a_master_are_no_service_and_the_time_of_affinity_is_no_port() -> None:
    node = Node()
    node.serve(
        plans.service(
            "10.96.0.1:80", plans.backend("10.244.1.1:80"), session_affinity=True, session_affinity_timeout_s=60
        )
    )
    stray = bytes((10, 96, 9, 9, 0, 80, 1, 0, 6, 0, 0, 0))
    node.maps.put_many("lb4_service", [(stray, (1).to_bytes(4, "little") + bytes(8))])
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert str(svc.frontend) == "10.96.0.1:80"
    assert (svc.session_affinity_timeout_s, svc.l7_lb_proxy_port) == (60, 0)


def test_a_slot_of_a_backend_that_has_no_row_names_none() -> None:
    node = Node()
    node.serve(plans.service("10.96.0.1:80", *[plans.backend(f"10.244.1.{n}:80") for n in (1, 2)]))
    node.maps.delete_many("lb4_backend", [(1).to_bytes(4, "little")])
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert texts(svc.selectable) == ["10.244.1.2:80"]


def test_what_is_read_back_is_on_its_node_and_has_no_time_it_was_not_given() -> None:
    """`plans.paths` says that the odd one is on this node."""
    node = Node()
    node.serve(plans.service("10.96.0.1:80", *[plans.backend(f"10.244.1.{n}:80") for n in (1, 2)]))
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert [(backend.local, backend.node_name) for backend in svc.selectable] == [(True, "me"), (False, "?")]
    assert (svc.session_affinity, svc.session_affinity_timeout_s, svc.l7_lb_proxy_port) == (False, 0, 0)


def test_wildcard_rows_that_are_kept_are_not_counted() -> None:
    found = [
        plans.service("10.96.0.1:80"),
        plans.service("10.96.0.2:80"),
        SVC(L3n4Addr.parse("10.96.0.1:0/NONE"), wildcard=True),
    ]
    held = Retention({svc.frontend: svc for svc in found}, ("folder",))
    assert len(held.add_to(State(1, ()), known_to()).services) == 3
    assert held.kept == 2
    assert "2 frontends" in held.reason


def test_groups_of_what_is_kept_stay_groups() -> None:
    name = ServiceName("default", "web")
    found = plans.service(
        "10.96.0.1:80",
        plans.backend("10.244.1.1:80"),
        unselectable=(plans.backend("10.244.1.2:80", QUARANTINED),),
        slotless=(plans.backend("10.244.1.3:80", MAINTENANCE),),
    )
    (svc,) = kept(found, known=[plans.service("10.96.0.1:80", plans.backend("10.244.1.4:80"), name=name)]).values()
    assert texts(svc.selectable) == ["10.244.1.1:80", "10.244.1.4:80"]
    assert texts(svc.unselectable) == ["10.244.1.2:80"]
    assert texts(svc.slotless) == ["10.244.1.3:80"]


def test_what_needs_no_rest_and_no_override_is_the_object_it_was() -> None:
    """Then the plan needs no look at it."""
    one, two = plans.backend("10.244.1.2:80"), plans.backend("10.244.1.1:80")
    found = plans.service("10.96.0.1:80", one, two)
    known = plans.service("10.96.0.1:80", one, two, name=ServiceName("default", "web"))
    assert kept(found, known=[known])["10.96.0.1:80"] is known
    assert kept(found)["10.96.0.1:80"] is found
    elsewhere = {L3n4Addr.parse("10.9.9.9:80"): MAINTENANCE}
    assert kept(found, overrides=elsewhere)["10.96.0.1:80"] is found


def test_a_table_is_kept_while_its_backends_are_the_same_and_made_anew_when_not() -> None:
    """The weights are not in the maps, so another table than the one found would move flows for nothing."""
    node = Node()
    heavy, light = plans.backend("10.244.1.1:80"), plans.backend("10.244.1.2:80", weight=7)
    node.serve(plans.service("10.96.0.1:80", heavy, light, algorithm=Algorithm.MAGLEV))
    before = node.maps.maglev("lb4_maglev")
    node.restart()
    (found,) = restored_state(node.shadow, "me").services
    node.serve(found)
    assert node.maps.maglev("lb4_maglev") == before
    node.restart()
    (found,) = restored_state(node.shadow, "me").services
    resting = kept(found, overrides={light.address: MAINTENANCE})["10.96.0.1:80"]
    node.serve(resting)
    (table,) = node.maps.maglev("lb4_maglev").values()
    assert set(memoryview(table).cast("I")) == {1}
    assert check(node.maps, settled=True) == []


@pytest.mark.parametrize(
    ("flag", "field"),
    [
        (ServiceFlags.SESSION_AFFINITY, "session_affinity"),
        (ServiceFlags.SOURCE_RANGE_DENY, "source_ranges_deny"),
        (ServiceFlags.SOURCE_RANGE, "check_source_range"),
        (ServiceFlags.LOOPBACK, "loopback_hostport"),
        (ServiceFlags.FORWARDING_DSR, "forwarding_dsr"),
    ],
)
def test_flags_are_read_back_each_by_itself(flag, field) -> None:
    fields = {"session_affinity", "source_ranges_deny", "check_source_range", "loopback_hostport", "forwarding_dsr"}
    node = Node()
    node.serve(plans.service("10.96.0.1:80", flags=flag))
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert {name for name in fields if getattr(svc, name)} == {field}


def test_the_port_of_a_proxy_is_no_time_and_an_unknown_algorithm_is_random() -> None:
    node = Node()
    flags = ServiceFlags.ROUTABLE | ServiceFlags.L7_LOAD_BALANCER
    node.serve(plans.service("10.96.0.1:80", flags=flags, l7_lb_proxy_port=9000, session_affinity=True))
    ((key, master),) = node.maps.items("lb4_service")
    node.maps.put_many("lb4_service", [(key, master[:3] + b"\x63" + master[4:])])
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert (svc.session_affinity, svc.session_affinity_timeout_s, svc.l7_lb_proxy_port) == (True, 0, 9000)
    assert svc.algorithm is Algorithm.RANDOM
    assert restored_state(node.shadow, "me").generation == 0


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


def test_source_ranges_are_read_back_in_order() -> None:
    node = Node()
    ranges = tuple(map(CIDR.parse, ("10.1.0.0/16", "10.0.0.0/8")))
    node.serve(plans.service("10.96.0.1:80", source_ranges=ranges, flags=ServiceFlags.SOURCE_RANGE))
    node.restart()
    (svc,) = restored_state(node.shadow, "me").services
    assert [str(found) for found in svc.source_ranges] == ["10.0.0.0/8", "10.1.0.0/16"]
