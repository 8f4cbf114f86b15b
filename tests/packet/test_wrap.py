"""Ages wrap: after 18 hours (16 bits of flows) or 9 hours (12 bits of SNAT slots) no packet goes to another client.

A flow sends only from a port that is its own, however long it was silent and whether a sweeper ran or not; and a connection that is
used within its time-out keeps its place.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.sweep import trust_ages
from lbagent.maps.reasons import Reason
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.clock import UNIT, WRAP, TimedWorld, open_timed_world, ticks_of
from tests.packet.craft import Family
from tests.packet.harness import SMALL
from tests.packet.test_clock import newcomer
from tests.packet.world import TCP, UDP, ServiceRow, World

DEFAULTS = ProgramSettings()
TCP_TICKS = ticks_of(DEFAULTS.timeout_tcp_s)
UDP_SILENT = 1  # ticks: so long a UDP flow certainly keeps its port, whatever others want
SLOT_WRAP = WRAP // 2
ONE_PORT = ProgramSettings(snat_port_min=2000, snat_port_max=2000)
STALE = TCP_TICKS + 8 * 70  # a slot is this old: it may be given to another flow
NEAR = (
    -2,
    -1,
    0,
    1,
    2,
    UNIT,
    30,
    61,
    255,
    256,
    257,
    1000,
    TCP_TICKS - 5,
    TCP_TICKS + 5,
    STALE,
    SLOT_WRAP - 1,
    SLOT_WRAP,
    SLOT_WRAP + 1,
)
AGES = sorted({wraps * WRAP + more for wraps in range(4) for more in NEAR if wraps * WRAP + more > STALE + 600})
STEP = TCP_TICKS // 2  # a connection that speaks so often lives


@pytest.fixture(scope="module")
def one_port_world() -> Iterator[TimedWorld]:
    """Load programs with a single SNAT port."""
    with open_timed_world(ONE_PORT, dataclasses.replace(SMALL, flow4=64, flow6=64, snat4=64, snat6=64)) as timed:
        yield timed


def service(world: World, fam: Family, proto: int = TCP, port: int = 80) -> ServiceRow:
    """Enter a frontend with one remote backend."""
    return world.service(fam, fam.vip, port, proto, [world.backend(fam, fam.remote(1), 8080, proto)])


@pytest.mark.parametrize("sweeper", ["none", "died", "late"])
def test_a_flow_of_any_age_keeps_its_hands_off_a_port_that_is_another_ones(
    one_port_world: TimedWorld, fam: Family, hook: str, sweeper: str
) -> None:
    """Its port went to another client; hours and days later it sends again.

    The sweeper: none for days; one that stopped half-way after the port was taken; or one that comes only after the flow's age
    has wrapped.
    """
    timed, world = one_port_world, one_port_world.reset()
    held = Caller(world, service(world, fam), hook=hook)
    held.establish()
    until = timed.sweep(fam)[1]
    timed.clock.pass_ticks(STALE)
    taker = newcomer(held, 0)
    taker.establish()
    assert taker.source == held.source
    passed = STALE
    for age in AGES:
        while passed < age:
            step = min(STEP, age - passed)
            timed.clock.pass_ticks(step)
            passed += step
            assert taker.stays()
            assert taker.is_answered()
            if sweeper == "died" and passed < WRAP:
                timed.sweep(fam, share=0.4)
        with undone(world, fam, until):  # each age is tried from the start
            if sweeper == "late" and age > WRAP:
                timed.sweep(fam)
            held.send("A")
            assert held.went is None, age
            assert taker.is_answered(), age


@contextmanager
def undone(world: World, fam: Family, until: int) -> Iterator[None]:
    """Restore the tables, and the tick until which ages are reliable."""
    names = (f"lb{fam.version}_flow", f"lb{fam.version}_snat")
    kept = {}
    for name in names:
        with world.maps.window(name, 0, world.maps.specs[name].value_size) as view:
            kept[name] = bytes(view)
    yield
    for name, data in kept.items():
        with world.maps.window(name, 0, len(data)) as view:
            view[:] = data
    trust_ages(world.maps, until)


def test_without_an_agent_for_days_connections_in_use_keep_their_place(
    one_port_world: TimedWorld, fam: Family, hook: str
) -> None:
    """No sweep for three days: a connection with a packet every hour continues, and keeps the only port."""
    timed, world = one_port_world, one_port_world.reset()
    held = Caller(world, service(world, fam), hook=hook)
    held.establish()
    timed.sweep(fam)
    for n in range(3 * WRAP // STEP):
        timed.clock.pass_ticks(STEP)
        assert held.stays()
        assert held.is_answered()
        assert newcomer(held, n).send("S").counted == {Reason.DROP_SNAT_EXHAUSTED: 1}
    assert timed.sweep(fam)[0] == 1
    assert held.stays()


def test_a_silent_connection_whose_port_is_still_its_own_goes_on(
    one_port_world: TimedWorld, fam: Family, hook: str
) -> None:
    """No other flow took the port: at any age the next packet goes to the same place, and from then on the port is kept."""
    for age in (TCP_TICKS + 5, WRAP - 1, WRAP, WRAP + 1, WRAP + 30, WRAP + 300, 2 * WRAP, 3 * WRAP + 30):
        timed, world = one_port_world, one_port_world.reset()
        held = Caller(world, service(world, fam), hook=hook)
        held.establish()
        timed.sweep(fam)
        timed.clock.pass_ticks(age)
        assert held.stays(), age
        assert newcomer(held, 0).send("S").dropped, age
        timed.clock.pass_ticks(STEP)
        assert newcomer(held, 1).send("S").dropped, age
        assert held.is_answered(), age


def test_a_sweeper_that_comes_back_after_a_wrap_takes_out_what_lost_its_port(
    one_port_world: TimedWorld, fam: Family, hook: str
) -> None:
    """A flow that looks young, because its age has wrapped, goes where its port is another one's; a flow that has its port stays."""
    timed, world = one_port_world, one_port_world.reset()
    held = Caller(world, service(world, fam), hook=hook)
    held.establish()
    timed.sweep(fam)
    timed.clock.pass_ticks(STALE)
    taker = newcomer(held, 0)
    taker.establish()
    for step in (*[STEP] * ((WRAP - STALE) // STEP), (WRAP - STALE) % STEP + 20):
        timed.clock.pass_ticks(step)
        assert taker.stays()
    assert len(table.flows(world, fam)) == 2
    assert timed.sweep(fam)[0] == 1
    assert [flow.client for flow in table.flows(world, fam)] == [taker.client]
    held.send("A")
    assert held.went is None
    assert taker.is_answered()


def test_ages_are_believed_only_as_long_as_they_can_be_right(one_port_world: TimedWorld, fam: Family) -> None:
    """From the beginning of a sweep to the moment when what it left could wrap, an hour of margin aside."""
    timed, world = one_port_world, one_port_world.reset()
    Caller(world, service(world, fam)).establish()
    now, first = timed.clock.tick, timed.sweep(fam)[1]
    assert WRAP // 2 < (first - now) % WRAP < WRAP - TCP_TICKS - 1024
    timed.clock.pass_ticks(500)
    assert 499 <= timed.sweep(fam)[1] - first <= 502


# --- a random walk against a model ---

ROOMY = (
    ProgramSettings(snat_port_min=2000, snat_port_max=2003),
    dataclasses.replace(SMALL, flow4=64, flow6=64, snat4=64, snat6=64),
    8,
)
TIGHT = (
    ProgramSettings(snat_port_min=2000, snat_port_max=2007),
    dataclasses.replace(SMALL, flow4=8, flow6=8, snat4=64, snat6=64),
    14,
)
STEPS = 600
JUMPS = (0, 1, 2, UNIT, 9, 30, 61, 62, 77, 130, 255, 256, 300, 1000, 5000, TCP_TICKS - 10, TCP_TICKS + 5, STALE, STALE + 300, 20000,
         SLOT_WRAP - 1, SLOT_WRAP, SLOT_WRAP + 30, WRAP - TCP_TICKS, WRAP - 70, WRAP - 1, WRAP, WRAP + 1, WRAP + 50, WRAP + TCP_TICKS - 20,
         2 * WRAP, 2 * WRAP + 5, 3 * WRAP - 3, 3 * WRAP + 61)  # fmt: skip
WEIGHTS = [12] * 15 + [3] * (len(JUMPS) - 15)


@dataclass
class Model:
    """The facts about each client without a look into the tables."""

    timed: TimedWorld
    fam: Family
    rng: random.Random
    callers: list[Caller]
    base: dict[int, int]  # by protocol: slot of port 0 towards the backend, modulo the number of slots
    sweeps: float  # how often
    seen: dict[tuple[str, int, int], int] = field(default_factory=dict)  # established flows: time of their last packet
    did: Counter[str] = field(default_factory=Counter)

    def key(self, who: Caller) -> tuple[str, int, int]:
        """Name a flow."""
        return (who.client, who.port, who.service.proto)

    @property
    def now(self) -> int:
        """Ticks."""
        return self.timed.clock.passed

    def lives(self, who: Caller) -> bool:
        """Return whether it is established and its time-out is not over, real time and rounding aside.

        A UDP flow that is silent may lose its port when another one wants it (docs/datapath.md, "States").
        """
        limit = TCP_TICKS - 8 if who.service.proto == TCP else UDP_SILENT
        return self.key(who) in self.seen and self.now - self.seen[self.key(who)] < limit

    def holder(self, who: Caller) -> tuple[str, int] | None:
        """Return who would get an answer to the port the client's packet came from."""
        assert who.backend is not None
        return table.slot_holder(self.timed.world, self.fam, self.base[who.service.proto] + who.source[1])

    def speak(self, who: Caller, flags: str) -> bool:
        """Send a packet. Wherever it goes, an answer would come to this client; a connection that lives keeps its place."""
        lived, before = self.lives(who), who.place
        who.send(flags)
        if who.went is None:
            assert not lived, (self.now, self.key(who), flags)
            self.seen.pop(self.key(who), None)
            return False
        assert self.holder(who) == who.endpoint, (self.now, self.key(who), flags, who.source)
        if lived:
            assert who.place == before, (self.now, self.key(who), flags)
            self.seen[self.key(who)] = self.now
        else:
            self.seen.pop(self.key(who), None)
        self.did["sent"] += 1
        return True

    def from_backend(self, who: Caller, flags: str = "A") -> bool:
        """Let the backend answer, if the port is still this client's."""
        if who.backend is None or self.holder(who) != who.endpoint:
            return False
        assert who.is_answered(flags), (self.now, self.key(who))
        if self.lives(who):
            self.seen[self.key(who)] = self.now
        return True

    def open(self, who: Caller) -> None:
        """Establish a connection, if there is a port for it."""
        first = self.speak(who, "S")
        if (
            first
            and self.from_backend(who, "SA")
            and self.speak(who, "A")
            and self.from_backend(who, "PA")
            and self.speak(who, "A")
        ):
            self.seen[self.key(who)] = self.now
            self.did["established"] += 1

    def step(self) -> None:
        """Do one random event."""
        who = self.rng.choice(self.callers)
        what = self.rng.random()
        if what < 0.25:
            self.timed.clock.pass_ticks(self.rng.choices(JUMPS, WEIGHTS)[0])
        elif what < 0.25 + self.sweeps:
            self.timed.sweep(self.fam, self.rng.choice((0.5, 1.0)))
            self.did["swept"] += 1
        elif what < 0.5:
            self.open(who)
        elif what < 0.55 and self.from_backend(who, "R" if who.service.proto == TCP else "A"):
            self.seen.pop(self.key(who), None)
        elif what < 0.6:
            self.speak(who, "S")
        elif what < 0.85:
            self.speak(who, "A")
        else:
            self.from_backend(who)


def model_of(timed: TimedWorld, fam: Family, hook: str, clients: int, sweeps: float) -> Model:
    """Enter a TCP and a UDP service on one backend, and their clients."""
    world = timed.reset()
    services = [service(world, fam, TCP, 80), service(world, fam, UDP, 53)]
    base = {}
    for row in services:
        first = Caller(world, row, port=39999, hook=hook)
        first.send("S")
        (index,) = table.held_slot_indexes(world, fam)
        base[row.proto] = index - first.source[1]
        world.forget_flows()
    timed.sweep(fam)
    callers = [
        Caller(world, row, (fam.client, fam.client2)[n % 2], first + n // 2, hook)
        for row, first in zip(services, (40000, 45000), strict=True)
        for n in range(clients)
    ]
    return Model(timed, fam, random.Random(clients), callers, base, sweeps)


@pytest.fixture(scope="module", params=[ROOMY, TIGHT], ids=["roomy", "tight"])
def walked_world(request: pytest.FixtureRequest) -> Iterator[tuple[TimedWorld, int]]:
    """Load programs with room for all flows, or with a table so small that flows lie in second buckets and in the spill map."""
    options, sizes, clients = request.param
    with open_timed_world(options, sizes) as timed:
        yield timed, clients


@pytest.mark.parametrize("sweeps", [0.0, 0.02, 0.1], ids=["never", "seldom", "often"])
def test_no_answer_ever_goes_to_another_client(
    walked_world: tuple[TimedWorld, int], fam: Family, hook: str, sweeps: float
) -> None:
    """With any order of packets and sweeps: the port a packet is sent from is its client's, and live connections stay."""
    timed, clients = walked_world
    model = model_of(timed, fam, hook, clients, sweeps)
    for _ in range(STEPS):
        model.step()
    assert model.did["established"] > STEPS // 20
    assert bool(sweeps) == bool(model.did["swept"])
