"""Maps that cannot hold what all want: no namespace grows beyond its fair share before the others, and nothing served is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.address import L3n4Addr
from lbagent.model.flags import ServiceFlags
from lbagent.model.service import CIDR, SVC, ServiceName
from lbagent.model.state import State
from lbagent.sync import backoff, failures
from lbagent.sync.target_protocol import Desired
from lbagent.targets.bpf import plan as plan_module
from lbagent.targets.bpf.bpf_target import BpfTarget
from tests.sync.rig import SMALL, FixedPaths
from tests.targets.bpf.plans import backend, backends_of, service
from tests.targets.bpf.test_full_maps import admits

GOOD, EVIL, UGLY = "good", "evil", "ugly"
PLENTY = 1 << 10


def backends(number: int, items: Iterable[int]) -> list:
    return [backend(f"10.{number}.0.{item}:80" if number < 100 else f"[fd00:{number}::{item:x}]:80") for item in items]


def row(namespace: str, number: int, items: Iterable[int] = (), **more) -> SVC:
    """Return a frontend with these backends; those from 100 on are IPv6."""
    address = f"10.96.0.{number}:80" if number < 100 else f"[fd00::{number}]:80"
    return service(address, *backends(number, items), name=ServiceName(namespace, f"s{number}"), **more)


def sticky(namespace: str, number: int, items: Iterable[int] = ()) -> SVC:
    return row(namespace, number, items, session_affinity=True)


def closed(namespace: str, number: int, items: Iterable[int] = ()) -> SVC:
    """Return a frontend with one backend that admits these networks."""
    nets = tuple(CIDR.parse(f"198.51.{item}.0/24" if number < 100 else f"2001:db8:{item}::/48") for item in items)
    flags = ServiceFlags.ROUTABLE | ServiceFlags.SOURCE_RANGE
    return row(namespace, number, (1,), source_ranges=nets, check_source_range=True, flags=flags)


class Agent:
    """A target without its loop, whose maps have so many entries; what fails waits for an hour, or for room."""

    def __init__(self, **limits: int) -> None:
        self.limits = limits
        self.maps = MemoryMaps(dataclasses.replace(SMALL, services=PLENTY, source_ranges=PLENTY))
        self.restart()

    def restart(self) -> None:
        self.target = BpfTarget.open(self.maps, FixedPaths(), "me")
        self.limit(**self.limits)

    def limit(self, **limits: int) -> None:
        for specs in (self.maps.specs, self.target.shadow.specs):
            for name, entries in limits.items():
                specs[name] = dataclasses.replace(specs[name], max_entries=entries)

    def serve(self, *rows: SVC) -> dict[int, str]:
        """Reconcile until the target rests; return what is missing, by the number of the frontend."""
        self.target.wake.set()
        asyncio.run(self._until_it_rests(Desired(State(1, rows))))
        assert self.target.error == ""
        assert all(
            used <= self.target.shadow.specs[name].max_entries for name, (used, _) in self.target.usage().items()
        )
        assert all(len(self.maps.items(name)) <= entries for name, entries in self.limits.items())
        return {number_of(frontend): str(failure.error) for frontend, failure in self.target.failing.items()}

    async def _until_it_rests(self, desired: Desired) -> None:
        for _ in range(20):
            if not self.target.wake.is_set():
                return
            self.target.wake.clear()
            await self.target.reconcile(desired)
        raise AssertionError("it wakes without end")

    def retry(self, *numbers: int) -> None:
        """Have these tried again with the next pass."""
        failing = [each for each in self.target.failing if number_of(each) in numbers]
        self.target._failures.retry_now(failing, time.monotonic())

    def items(self, svc: SVC) -> set[int] | None:
        """Return the backends, or the networks, that a frontend has; None without a frontend."""
        found = backends_of(self.maps, svc.frontend)
        if found is None:
            return None
        if svc.check_source_range:
            nets = [str(cidr).split("/")[0] for cidr in svc.source_ranges]
            return {
                int(net.split(":" if ":" in net else ".")[2]) for net in nets if admits(self.maps, svc.frontend, net)
            }
        return {int(each.split(":")[0][-2:], 16) for each in found}


def number_of(frontend: L3n4Addr) -> int:
    last = frontend.address[-1]
    return int(f"{frontend.address[-2]:x}{last:02x}") if len(frontend.address) == 16 else last


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is not tried again by itself."""
    monkeypatch.setattr(failures, "delays", lambda: backoff.delays(3600, 3600))


# --- examples: 20 slots, of which 16 are shared ---


def slots(limit: int = 20) -> Agent:
    return Agent(lb4_service=limit)


def test_a_namespace_above_its_share_leaves_room_for_new_frontends_of_others() -> None:
    """good wants 4 slots, so that evil has 12: six frontends of two."""
    agent, evil = slots(), [row(EVIL, number, (1,)) for number in range(20, 40)]
    missing = agent.serve(*evil, row(GOOD, 1, (1,)), row(GOOD, 2, (1,)))
    assert missing.keys() == set(range(26, 40))
    assert missing[39] == (
        "namespace evil has 12 of 20 slots of lb4_service and asks for 2 more here; its fair share is 12 while more than"
        " 80% are wanted; raise --max-service-slots; the new frontend is left out; everything already written keeps serving"
    )
    assert agent.serve(*evil, row(GOOD, 1, (1, 2)), row(GOOD, 2, (1, 2)), row(GOOD, 3, (1,))).keys() == missing.keys()
    assert [agent.items(row(GOOD, number)) for number in (1, 2, 3)] == [{1, 2}, {1, 2}, {1}]


def test_a_served_frontend_above_the_share_keeps_what_it_has() -> None:
    agent, good = slots(), row(GOOD, 1, range(1, 8))
    assert agent.serve(row(EVIL, 2, range(1, 8)), good) == {}
    missing = agent.serve(row(EVIL, 2, range(1, 13)), good)
    assert missing == {
        2: "namespace evil has 10 of 20 slots of lb4_service and asks for 3 more here; its fair share is 10 while more than 80%"
        " are wanted; raise --max-service-slots; the frontend has 9 of its 12 backends; no new flow goes to 10.2.0.10:80/TCP,"
        " 10.2.0.11:80/TCP, 10.2.0.12:80/TCP until there is room"
    }
    assert agent.items(row(EVIL, 2)) == set(range(1, 10))
    assert agent.target.largest_namespaces("lb4_service") == {"evil": 10, "good": 8}
    agent.serve(row(EVIL, 2, range(21, 33)), good)
    assert agent.items(row(EVIL, 2)) == set(range(21, 30)), "a change within what it has"
    assert agent.serve(row(EVIL, 2, (30,)), good) == {}, "a removal"
    assert agent.items(row(EVIL, 2)) == {30}


def test_a_namespace_alone_may_fill_a_map() -> None:
    agent = slots()
    assert agent.serve(row(EVIL, 2, range(1, 20))) == {}
    assert "map lb4_service is full: 20 of 20 entries used" in agent.serve(row(EVIL, 2, range(1, 25)))[2]


def test_freed_room_goes_by_share() -> None:
    """evil was alone. It frees 4 slots and needs 30 more; good waits, whichever is tried first."""
    agent, good = slots(), row(GOOD, 1, (1, 2))
    agent.serve(row(EVIL, 2, range(1, 20)))
    assert "map lb4_service is full" in agent.serve(row(EVIL, 2, range(1, 20)), good)[1]
    greedy = row(EVIL, 3, range(1, 31))
    assert agent.serve(row(EVIL, 2, range(1, 16)), greedy, good).keys() == {3}
    assert agent.items(good) == {1, 2}
    agent.retry(3)
    assert agent.serve(row(EVIL, 2, range(1, 16)), greedy, good).keys() == {3}


def test_what_waits_counts_although_the_map_is_not_full() -> None:
    """evil waits for 31 slots. good would fit below the guard, and has its half, as if both were planned at once."""
    agent, large = slots(), row(EVIL, 3, range(1, 31))
    assert agent.serve(row(EVIL, 2, (1,)), large, row(GOOD, 1, (1,))).keys() == {3}
    assert agent.serve(row(EVIL, 2, (1,)), large, row(GOOD, 1, range(1, 13))).keys() == {1, 3}
    assert agent.items(row(GOOD, 1)) == set(range(1, 10))


def test_room_for_what_waits_is_not_given_to_others() -> None:
    """good waits for an hour with 7 slots, for which there is no room yet. When there is, evil does not get it."""
    agent, good = slots(), row(GOOD, 1, range(1, 7))
    full = (row(EVIL, 2, range(1, 8)), row(UGLY, 3, range(1, 8)))
    assert agent.serve(*full) == {}
    assert agent.serve(*full, good).keys() == {1}
    assert agent.serve(row(EVIL, 2, range(1, 9)), full[1], good).keys() == {1, 2}
    assert agent.serve(row(EVIL, 2, range(1, 9)), row(UGLY, 3), good).keys() == {2}
    assert agent.items(good) == set(range(1, 7))


def test_a_share_that_grows_is_used_at_once() -> None:
    """good gives up a frontend that never had an entry: no entry leaves, and evil may have more."""
    agent, evil = slots(), row(EVIL, 2, range(1, 12))
    assert agent.serve(row(EVIL, 2, range(1, 5)), row(GOOD, 1, (1, 2)), row(GOOD, 3, range(1, 30))).keys() == {3}
    assert agent.serve(evil, row(GOOD, 1, (1, 2)), row(GOOD, 3, range(1, 30))).keys() == {2, 3}
    assert agent.serve(evil, row(GOOD, 1, (1, 2))) == {}
    assert agent.items(evil) == set(range(1, 12))


def test_room_that_one_cannot_use_goes_to_others_within_their_share() -> None:
    """evil has all slots but 6. Each of three could have 2 of them and needs 3."""
    agent, evil = slots(40), row(EVIL, 2, range(1, 34))
    assert agent.serve(evil) == {}
    new = [row(namespace, number, (1, 2)) for number, namespace in ((11, "a"), (12, "b"), (13, "c"))]
    assert agent.serve(evil, *new).keys() == {13}
    assert agent.serve(evil, *new[1:]) == {}


def test_room_that_is_short_is_shared_equally() -> None:
    """evil has all slots but 6; of two served frontends each gets 3 more."""
    agent, small = slots(40), (row("a", 11, (1,)), row("b", 12, (1,)))
    agent.serve(row(EVIL, 2, range(1, 30)))
    assert agent.serve(row(EVIL, 2, range(1, 30)), *small) == {}
    missing = agent.serve(row(EVIL, 2, range(1, 30)), row("a", 11, range(1, 10)), row("b", 12, range(1, 10)))
    assert missing.keys() == {11, 12}
    assert [len(agent.items(each)) for each in small] == [4, 4]


def test_shares_of_affinity_matches() -> None:
    """Both families share the map: 20 entries, 10 for each namespace."""
    agent, good = Agent(lb_affinity_match=20), sticky(GOOD, 101, range(1, 11))
    missing = agent.serve(sticky(EVIL, 1, range(1, 9)), sticky(EVIL, 2, range(1, 9)), good)
    assert missing.keys() == {2}
    assert "namespace evil has 8 of 20 affinity matches of lb_affinity_match and asks for 8 more" in missing[2]
    assert "raise --max-service-slots" in missing[2]
    assert agent.serve(sticky(EVIL, 1, range(1, 13)), good).keys() == {1}
    assert agent.items(sticky(EVIL, 1)) == set(range(1, 11))
    assert agent.target.largest_namespaces("lb_affinity_match") == {"evil": 10, "good": 10}


@pytest.mark.parametrize("first", [0, 100], ids=["IPv4", "IPv6"])
def test_shares_of_source_ranges(first: int) -> None:
    name = "lb6_source_range" if first else "lb4_source_range"
    agent, good = Agent(**{name: 10}), closed(GOOD, first + 1, range(1, 4))
    assert agent.serve(closed(EVIL, first + 2, range(1, 5)), good) == {}
    missing = agent.serve(closed(EVIL, first + 2, range(1, 8)), good)
    assert missing[first + 2].startswith(
        f"namespace evil has 5 of 10 source ranges of {name} and asks for 2 more here; its fair share is 5"
    )
    assert "the frontend admits 5 of its 7 source ranges" in missing[first + 2]
    assert agent.target.largest_namespaces(name) == {"evil": 5, "good": 3}
    assert agent.serve(closed(EVIL, first + 2, range(1, 8)), closed(GOOD, first + 1, range(1, 6))).keys() == {first + 2}
    assert agent.serve(closed(EVIL, first + 2, range(1, 8))) == {}


def test_shares_hold_over_a_restart() -> None:
    agent, rows = slots(), (row(EVIL, 2, range(1, 13)), row(GOOD, 1, range(1, 8)))
    missing = agent.serve(*rows)
    agent.serve(row(EVIL, 2, range(1, 9)), rows[1])
    assert agent.serve(*rows).keys() == {2}
    before = agent.items(rows[0])
    agent.restart()
    assert agent.serve(*rows).keys() == {2}
    assert agent.items(rows[0]) == before
    assert missing.keys() == {2}


def test_namespaces_are_counted_only_beyond_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """17 of 20 is the first number beyond 80 %; what does not grow needs no share there."""
    counted: list[int] = []

    def counting(desired: State, shadow):
        counted.append(len(desired.services))
        return (yield from original(desired, shadow))

    original = plan_module.counting
    monkeypatch.setattr(plan_module, "counting", counting)
    agent = slots()
    agent.serve(row(EVIL, 2, range(1, 14)), row(GOOD, 1, (1,)))
    assert counted == []
    agent.serve(row(EVIL, 2, range(1, 15)), row(GOOD, 1, (1,)))
    assert counted == [2]
    agent.serve(row(EVIL, 2, range(3, 16)), row(GOOD, 1, (1,)))
    agent.serve(row(EVIL, 2, range(3, 10)), row(GOOD, 1, (1,)))
    assert counted == [2]


# --- any history ---

LIMIT = 24
NAMESPACES = ("a", "b", "c")
SIZES = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c", 7: "a", 8: "b"}  # the namespace of each frontend


class Kind(Struct):
    """How frontends fill a map."""

    limits: dict[str, int]
    make: Callable[[str, int, Iterable[int]], SVC]
    fixed: int  # entries of a frontend besides its items
    families: bool = False  # frontends of both families share the map


KINDS = {
    "slots": Kind({"lb4_service": LIMIT}, row, 1),
    "matches": Kind({"lb_affinity_match": LIMIT}, sticky, 0, families=True),
    "ranges": Kind({"lb4_source_range": LIMIT}, closed, 0),
}
CONTENTS = st.dictionaries(
    st.sampled_from(sorted(SIZES)), st.frozensets(st.integers(1, 15), min_size=1, max_size=12), min_size=1, max_size=8
)


def fair(limit: int, wanted: dict[str, int]) -> dict[str, int]:
    """Return the share of each namespace: 80 % are given one by one to the holder that has least; at least the part of an equal one."""
    given_ = dict.fromkeys(wanted, 0)
    for _ in range(limit * 4 // 5):
        hungry = [each for each in wanted if given_[each] < wanted[each]]
        if hungry:
            given_[min(hungry, key=given_.__getitem__)] += 1
    return {each: max(given_[each], min(wanted[each], limit // len(wanted))) for each in wanted}


class World:
    """An agent, and what its frontends need."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.agent = kind, Agent(**kind.limits)
        self.wanted: dict[int, frozenset[int]] = {}
        self.missing: dict[int, str] = {}

    def number(self, number: int) -> int:
        return number + 100 if self.kind.families and number % 3 == 0 else number

    def rows(self, order: Sequence[int]) -> list[SVC]:
        return [self.kind.make(SIZES[each], self.number(each), sorted(self.wanted[each])) for each in order]

    def serve(self, wanted: dict[int, frozenset[int]], order: Sequence[int]) -> None:
        self.wanted = wanted
        self.missing = self.agent.serve(*self.rows(order))

    def items(self) -> dict[int, set[int]]:
        """Return what each frontend has that is there."""
        found = zip(self.wanted, self.agent_items(), strict=True)
        return {number: items for number, items in found if items is not None}

    def agent_items(self) -> list[set[int] | None]:
        return [self.agent.items(each) for each in self.rows(list(self.wanted))]

    def held(self, items: dict[int, set[int]] | dict[int, frozenset[int]]) -> dict[str, int]:
        """Return how many entries each namespace has."""
        found: dict[str, int] = {}
        for number, each in items.items():
            found[SIZES[number]] = found.get(SIZES[number], 0) + self.kind.fixed + len(each)
        return found


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(history=st.lists(st.tuples(CONTENTS, st.randoms(use_true_random=False)), min_size=1, max_size=6))
def test_any_history(kind: str, history) -> None:
    world = World(KINDS[kind])
    for wanted, random in history:
        before = world.items()
        order = random.sample(sorted(wanted), len(wanted))
        world.serve(wanted, order)
        now, total = world.items(), world.held(wanted)
        kept = {number: before[number] & wanted[number] for number in before.keys() & wanted.keys()}
        assert all(items <= wanted[number] for number, items in now.items()), "what is gone goes"
        assert all(items <= now[number] for number, items in kept.items()), "what is served stays"
        assert sum(world.held(now).values()) <= LIMIT
        if sum(total.values()) <= LIMIT * 4 // 5:
            assert now == wanted, "each gets what it needs"
        shares, has = fair(LIMIT, total), world.held(now)
        for number, items in wanted.items():
            namespace = SIZES[number]
            lacks = world.kind.fixed + len(items) if number not in now else len(items - now[number])
            assert bool(lacks) is (world.number(number) in world.missing)
            need = lacks if number not in now else min(1, lacks)
            within = has.get(namespace, 0) + need < shares[namespace] or len(total) == 1
            free = LIMIT - sum(has.values())
            assert not need or not within or need > free, f"{number} lacks {need} of {free} free entries"
        for namespace, number in has.items():
            had = world.held(kept).get(namespace, 0)
            slots_before = sum(  # the frontend keeps its slots: what left is replaced
                min(len(before[each]), len(wanted[each])) + world.kind.fixed
                for each in kept
                if SIZES[each] == namespace
            )
            assert number <= max(had, slots_before, shares[namespace] + 1) or len(total) == 1
        tried = random.sample(sorted(wanted), random.randint(0, len(wanted)))
        world.agent.retry(*map(world.number, tried))
        world.serve(wanted, order)
        assert world.items() == now, "a holder that is tried again gets nothing that it was refused"
    world.agent.limit(**dict.fromkeys(world.agent.limits, 200))
    world.agent.limits = {}
    world.agent.retry(*map(world.number, world.wanted))
    world.serve(world.wanted, list(world.wanted))
    assert world.missing == {}
    assert world.items() == world.wanted, "recovery is complete"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(
    wanted=st.fixed_dictionaries(
        {number: st.frozensets(st.integers(1, 15), min_size=1, max_size=12) for number in SIZES}
    ),
    random=st.randoms(use_true_random=False),
)
def test_the_order_does_not_matter(kind: str, wanted: dict[int, frozenset[int]], random) -> None:
    """Frontends that are served grow, all at once or one by one in any order: the namespaces end with the same numbers."""
    found = []
    for one_by_one in (False, True):
        world = World(KINDS[kind])
        contents = {number: frozenset(sorted(items)[:1]) for number, items in wanted.items()}
        world.serve(contents, sorted(wanted))
        assert world.missing == {}
        order = random.sample(sorted(wanted), len(wanted))
        world.serve(wanted, order)
        for number in order if one_by_one else ():
            world.agent.retry(world.number(number))
            world.serve(wanted, order)
        found.append(world.held(world.items()))
    assert found[0] == found[1]
