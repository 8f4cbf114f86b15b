"""Effects of time, with a clock that is set: time-outs, leases of SNAT ports, renewals, affinity, the rate of answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.caller import Caller, sweep
from tests.packet.clock import UNIT, TimedWorld, open_timed_world, ticks_of
from tests.packet.craft import Family
from tests.packet.harness import SMALL, one_cpu
from tests.packet.test_state import TIMEOUTS
from tests.packet.world import TCP, UDP, XDP, World

DEFAULTS = ProgramSettings()
ONE_PORT = ProgramSettings(snat_port_min=2000, snat_port_max=2000)
HOUR_S = 3600


@pytest.fixture(scope="module")
def loaded_timed_world() -> Iterator[TimedWorld]:
    """Load programs that use the test's clock."""
    with open_timed_world() as timed:
        yield timed


@pytest.fixture
def timed_world(loaded_timed_world: TimedWorld) -> TimedWorld:
    """Return it with nothing in it."""
    loaded_timed_world.reset()
    return loaded_timed_world


@pytest.fixture(scope="module")
def loaded_one_port_world() -> Iterator[TimedWorld]:
    """Load programs with a single SNAT port."""
    with open_timed_world(ONE_PORT) as timed:
        yield timed


@pytest.fixture
def one_port_world(loaded_one_port_world: TimedWorld) -> TimedWorld:
    """Return it with nothing in it."""
    loaded_one_port_world.reset()
    return loaded_one_port_world


def caller(world: World, fam: Family, hook: str, proto: int = TCP, *, local: bool = False, port: int = 80) -> Caller:
    """Enter a service with one backend, and return a client of it."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, proto, local=local)
    return Caller(world, world.service(fam, fam.vip, port, proto, [backend]), hook=hook)


def newcomer(held: Caller, n: int) -> Caller:
    """Return another client of the same service."""
    return dataclasses.replace(held, client=held.fam.client2, port=50000 + n, backend=None)


def swept(timed: TimedWorld, fam: Family, seconds: float) -> None:
    """Let time pass, and the sweeper run as it does in a running agent."""
    timed.clock.pass_seconds(seconds)
    timed.sweep(fam)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("case", list(TIMEOUTS))
def test_time_outs(timed_world: TimedWorld, fam: Family, hook: str, case: str, *, local: bool) -> None:
    """A flow is there until its time-out and gone, port included, just after it; whatever the state."""
    proto, packets, seconds = TIMEOUTS[case]
    world, clock = timed_world.world, timed_world.clock
    talk = caller(world, fam, hook, proto, local=local)
    for packet in packets:
        (talk.answer if packet.startswith("<") else talk.send)(packet.lstrip("<"))
    clock.pass_ticks(ticks_of(seconds) - 2)
    assert sweep(world, fam)[0] == 1
    assert table.held_slots(world, fam) == (not local)
    clock.pass_ticks(4)
    assert sweep(world, fam)[0] == 0
    assert table.flows(world, fam) == []
    assert table.held_slots(world, fam) == 0


def test_the_port_of_an_unanswered_syn_comes_back(one_port_world: TimedWorld, fam: Family, hook: str) -> None:
    """The lease of a first packet is short: with the sweeper at work its port serves the next one after the time-out, not before."""
    world, clock = one_port_world.world, one_port_world.clock
    first = caller(world, fam, hook)
    first.send("S")
    assert newcomer(first, 0).send("S").counted == {Reason.DROP_SNAT_EXHAUSTED: 1}
    clock.pass_ticks(ticks_of(DEFAULTS.timeout_new_s) + 2)
    sweep(world, fam)
    second = newcomer(first, 1)
    second.establish()
    assert second.source[1] == first.source[1]


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
@pytest.mark.parametrize("who", ["client", "backend"])
def test_either_side_alone_keeps_a_flow_and_its_port(
    one_port_world: TimedWorld, fam: Family, hook: str, who: str, proto: int
) -> None:
    """Three hours of an upload, or of a download without a packet of the client: no other flow gets the only port."""
    held = caller(one_port_world.world, fam, hook, proto)
    held.establish()
    step = (DEFAULTS.timeout_tcp_s if proto == TCP else DEFAULTS.timeout_udp_s) * 0.9
    for n in range(int(3 * HOUR_S / step)):
        swept(one_port_world, fam, step)
        assert held.stays() if who == "client" else held.is_answered()
        assert newcomer(held, n).send("S").dropped
    assert held.stays()
    assert held.is_answered()


def test_replies_note_that_they_come_once_in_eight_ticks(timed_world: TimedWorld, fam: Family, hook: str) -> None:
    """The first reply of eight ticks is noted in slot and entry; the others leave the lines of the flow table alone."""
    world, clock = timed_world.world, timed_world.clock
    world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)  # the flow's first reply learns it
    talk = caller(world, fam, hook)
    talk.establish()
    for _ in range(3):
        clock.pass_ticks(UNIT - clock.tick % UNIT)
        assert talk.is_answered()
        noted = table.only(world, fam).seen
        assert (clock.tick - noted) & 0xFFFF <= 1
        clock.pass_ticks(2)
        assert talk.is_answered()
        assert table.only(world, fam).seen == noted


@pytest.fixture(scope="module", params=[16, 8], ids=["second-buckets", "spill"])
def small_world(request: pytest.FixtureRequest) -> Iterator[TimedWorld]:
    """Load programs with so few entries that twelve flows have no room in their first buckets, or none in the table."""
    with open_timed_world(sizes=dataclasses.replace(SMALL, flow4=request.param, flow6=request.param)) as timed:
        yield timed


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_flows_beside_their_bucket_are_found_for_hours(small_world: TimedWorld, fam: Family, *, local: bool) -> None:
    """Twelve flows in a small table: those with a packet now and then keep their place, in second buckets and in the spill map as well."""
    small_world.reset()
    first = caller(small_world.world, fam, XDP, local=local)
    talks = [dataclasses.replace(first, port=40000 + n) for n in range(12)]
    for talk in talks:
        talk.establish()
    where = {talk.port: talk.place for talk in talks}
    entries = small_world.world.sizes.flow4
    assert len(table.flows(small_world.world, fam)) == min(entries, len(talks))
    other = small_world.world.backend(fam, fam.local(2) if local else fam.remote(2), 8080, local=local)
    small_world.world.slot(first.service, 1, target=other.id)  # where a flow would go that was not found
    for _ in range(12):
        swept(small_world, fam, DEFAULTS.timeout_tcp_s * 0.3)
        for talk in talks:
            assert talk.stays(), talk.port
            assert talk.place == where[talk.port]
            assert talk.is_answered()
    assert len({str(place) for place in where.values()}) == len(where)


def test_affinity_ends_with_its_time(timed_world: TimedWorld, fam: Family, hook: str) -> None:
    """A client's new connections go to its backend for as long as the last one is younger than the time-out."""
    world, clock = timed_world.world, timed_world.clock
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 5)]
    service = world.service(fam, fam.vip, 80, TCP, backends, affinity_s=600)
    ports = iter(range(40000, 41000))

    def choice() -> object:
        talk = Caller(world, service, port=next(ports), hook=hook)
        talk.send("S")
        return talk.backend

    held = choice()
    for _ in range(10):
        clock.pass_seconds(590)
        assert choice() == held
    others = set()
    for _ in range(12):
        clock.pass_seconds(601)
        others.add(choice())
    assert len(others) > 1


def test_answers_come_back_a_second_later(timed_world: TimedWorld, fam: Family, hook: str) -> None:
    """A flood uses up one second's answers; the next second has its own, and hours of peace save up no more than one second's."""
    world, clock = timed_world.world, timed_world.clock
    world.service(fam, fam.vip, 80, TCP)
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))

    def answered() -> tuple[int, float]:
        """Return how many of a second's flood were answered, and how many may have been."""
        began, before = time.monotonic(), world.maps.counters([Reason.REJECT_NO_BACKEND])[0][0]
        with world.net.inside():
            for _ in range(2 * DEFAULTS.reject_rate):
                world.raw(hook, frame)
        most = DEFAULTS.reject_rate * (1.1 + time.monotonic() - began)
        return world.maps.counters([Reason.REJECT_NO_BACKEND])[0][0] - before, most

    with one_cpu():
        answered()
        for hours in (0, 20):
            clock.pass_seconds(1 + hours * HOUR_S)
            found, most = answered()
            assert DEFAULTS.reject_rate <= found <= most


@pytest.fixture(scope="module")
def impatient_world() -> Iterator[TimedWorld]:
    """Load programs whose longest time-out is that of a flow without an answer."""
    with open_timed_world(replace(ONE_PORT, timeout_new_s=600, timeout_tcp_s=30, timeout_udp_s=5)) as timed:
        yield timed


def test_a_long_wait_for_the_answer_keeps_the_port(impatient_world: TimedWorld, fam: Family, hook: str) -> None:
    """Whatever time-out is the longest: the port of a flow whose client still tries is not given away."""
    first = caller(impatient_world.reset(), fam, hook)
    for n in range(5):
        first.send("S")
        assert newcomer(first, n).send("S").dropped
        assert first.is_answered("SA")
        impatient_world.clock.pass_seconds(1)


# --- a port changes hands ---


def take_over(timed: TimedWorld, held: Caller) -> Caller:
    """Let the flow expire, without a sweeper, and another client have its port."""
    timed.clock.pass_seconds(DEFAULTS.timeout_tcp_s + 1000)
    taker = newcomer(held, 0)
    taker.establish()
    assert taker.source == held.source
    return taker


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R", "S"])
def test_an_expired_flow_does_not_send_from_a_port_that_is_another_ones(
    one_port_world: TimedWorld, fam: Family, hook: str, flags: str
) -> None:
    """The answer to its packets would go to the client that has the port now."""
    held = caller(one_port_world.world, fam, hook)
    held.establish()
    taker = take_over(one_port_world, held)
    held.send(flags)
    assert held.went is None
    assert taker.is_answered()
    assert taker.stays()


def test_an_old_flow_that_ends_does_not_free_the_port_of_the_new_one(
    one_port_world: TimedWorld, fam: Family, hook: str
) -> None:
    """The same client port, the same backend, another frontend: only the slot's generation distinguishes the holders."""
    world = one_port_world.world
    held = caller(world, fam, hook)
    held.establish()
    other = world.service(fam, fam.vip2, 443, TCP, held.service.backends)
    one_port_world.clock.pass_seconds(DEFAULTS.timeout_tcp_s + 1000)
    taker = Caller(world, other, hook=hook)
    taker.establish()
    assert taker.source == held.source
    sweep(world, fam)  # the first flow's entry goes
    assert [flow.snat_port for flow in table.flows(world, fam)] == [taker.source[1]]
    assert taker.is_answered()
    assert newcomer(taker, 0).send("S").dropped
    assert expect.destination(taker.answer("A")) == taker.endpoint


def test_a_reply_to_a_port_that_a_flow_left_says_nothing_about_the_flow(
    timed_world: TimedWorld, fam: Family, hook: str
) -> None:
    """A connection was opened again, and goes to another backend now; the RST of the one before does not close it."""
    world = timed_world.world
    rows = [world.backend(fam, fam.remote(n), 8080) for n in (1, 2)]
    service = world.service(fam, fam.vip, 80, TCP, rows)
    talk = Caller(world, service, hook=hook)
    talk.establish()
    left = dataclasses.replace(talk)
    assert talk.backend is not None
    stay = next(row for row in rows if row != talk.backend)
    for n in (1, 2):
        world.slot(service, n, target=stay.id)
    world.path_flags(talk.backend, clear=2)  # takes no new flows
    talk.establish()
    assert talk.backend == stay
    left.answer("R")
    assert table.only(world, fam).state == table.EST
