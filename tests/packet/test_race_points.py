"""Two CPUs meet between two steps: each time one of them runs at the worst moment (base/race_point.h), and both are right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings, pack_config
from lbagent.bpf.run.flow_delete import FlowDeleter
from lbagent.kernel import jiffies
from lbagent.maps.flow_reader import raw_flows
from lbagent.model import family as model
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.clock import Clock, TimedWorld, ticks_of
from tests.packet.craft import Family
from tests.packet.harness import SEEDS, SMALL, open_world
from tests.packet.race_points import RacePoints, noted, part, put, race_artifact
from tests.packet.test_clock import caller, newcomer
from tests.packet.test_migrate import GROWN, Change, Talk, changes
from tests.packet.world import TCP

DEFAULTS = ProgramSettings()
ONE_PORT = ProgramSettings(snat_port_min=2000, snat_port_max=2000)
ENTRIES = 8


@dataclass(frozen=True)
class RacingWorld(TimedWorld):
    """A world with a clock, and with another CPU that runs where it is let in."""

    points: RacePoints


@pytest.fixture(scope="module")
def loaded_racing_world() -> Iterator[RacingWorld]:
    """Load programs with race points, one SNAT port and two buckets."""
    clock, points = Clock(), RacePoints()
    sizes = dataclasses.replace(SMALL, flow4=ENTRIES, flow6=ENTRIES, snat4=64, snat6=64)
    try:
        with open_world(
            ONE_PORT,
            sizes,
            artifact=race_artifact(),
            splice=lambda made, maps: clock.splice(points.splice(made, maps), maps),
        ) as world:
            yield RacingWorld(world, clock, points)
    finally:
        clock.close()
        points.close()


@pytest.fixture
def racing_world(loaded_racing_world: RacingWorld) -> RacingWorld:
    """Return it with nothing in it."""
    loaded_racing_world.reset()
    return loaded_racing_world


# --- two packets of one new flow ---


def check_only_holder(racing: RacingWorld, talk: Caller) -> None:
    """Assert that the flow works, and that it gives its port back when it ends."""
    world, fam = racing.world, talk.fam
    assert len(table.flows(world, fam)) == 1
    assert table.held_slots(world, fam) == 1
    assert talk.is_answered("SA")
    assert talk.stays()
    talk.answer("R")
    racing.clock.pass_seconds(DEFAULTS.timeout_closing_s + 2)
    racing.sweep(fam)
    assert table.flows(world, fam) == []
    assert table.held_slots(world, fam) == 0
    newcomer(talk, 0).establish()


def test_both_make_the_flow_and_this_one_took_the_port_last(racing_world: RacingWorld, fam: Family, hook: str) -> None:
    """The other CPU takes the port, this one takes it over (one client, one flow), and the other one's entry stands."""
    world, points = racing_world.world, racing_world.points
    talk = caller(world, fam, hook)
    other = noted(world, fam.version, lambda: talk.send("S"))
    points.let_in("FLOW_CREATE", part(other, "snat"))
    points.let_in("SNAT_TAKEN", part(other, "flow"))
    assert talk.stays("S")
    assert points.passed("SNAT_TAKEN")
    check_only_holder(racing_world, talk)


def test_both_make_the_flow_and_the_other_took_the_port_last(racing_world: RacingWorld, fam: Family, hook: str) -> None:
    """This CPU has taken the port when the whole packet of the other one comes in between."""
    world, points = racing_world.world, racing_world.points
    talk = caller(world, fam, hook)
    mine = part(noted(world, fam.version, lambda: talk.send("S")), "snat")
    put(world, fam.version, mine)
    other = noted(world, fam.version, lambda: talk.send("S"))
    world.forget_flows()
    points.let_in("SNAT_TAKEN", other)
    assert talk.stays("S")
    assert points.passed("SNAT_TAKEN")
    check_only_holder(racing_world, talk)


# --- an entry that is about to go ---


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_a_flow_speaks_while_the_sweeper_takes_it(
    racing_world: RacingWorld, fam: Family, hook: str, *, local: bool
) -> None:
    """The sweeper saw that it had expired; before it takes the entry a packet arrives. The connection continues."""
    world, points = racing_world.world, racing_world.points
    talk = caller(world, fam, hook, local=local)
    talk.establish()
    racing_world.clock.pass_seconds(DEFAULTS.timeout_tcp_s + 2)
    points.let_in("ENTRY_EXPIRE", noted(world, fam.version, lambda: talk.send("A")))
    assert racing_world.sweep(fam)[0] == 0
    assert points.passed("ENTRY_EXPIRE")
    assert len(table.flows(world, fam)) == 1
    assert table.held_slots(world, fam) == (not local)
    assert talk.stays()
    assert talk.is_answered()
    assert racing_world.sweep(fam)[0] == 1


def test_a_flow_is_established_while_its_entry_is_taken_from_it(
    racing_world: RacingWorld, fam: Family, hook: str
) -> None:
    """The table is full of half-open connections, one of them is the victim of a new one; its handshake ends just then: another one goes."""
    world, points = racing_world.world, racing_world.points
    first = caller(world, fam, hook, local=True)
    talks = {(first.client, 40000 + n): dataclasses.replace(first, port=40000 + n) for n in range(4 * ENTRIES)}
    for talk in talks.values():
        talk.send("S")
    before = {flow.position: (flow.client, flow.port) for flow in table.flows(world, fam)}
    assert len(before) == ENTRIES
    late = newcomer(first, 0)
    found: list[int] = []

    def come() -> None:
        late.send("S")
        found.extend(flow.position for flow in table.flows(world, fam) if flow.client == late.client)

    noted(world, fam.version, come)
    victim = talks[before[found[0]]]
    points.let_in(
        "ENTRY_CLAIM",
        noted(world, fam.version, lambda: (victim.is_answered("SA"), victim.send("A"), victim.answer("A"))),
    )
    late.send("S")
    assert points.passed("ENTRY_CLAIM")
    flows = {(flow.client, flow.port): flow.state for flow in table.flows(world, fam)}
    assert flows[victim.endpoint] == table.EST
    assert len(flows) == ENTRIES


# --- a port that is taken back ---


def half_open(racing: RacingWorld, fam: Family, hook: str) -> Caller:
    """Let a client hold the only port by a SYN, long enough that another one may have it."""
    talk = caller(racing.world, fam, hook)
    talk.send("S")
    racing.clock.pass_ticks(ticks_of(DEFAULTS.timeout_new_s) // 2)
    return talk


def test_a_flow_is_established_while_its_port_is_taken_back(racing_world: RacingWorld, fam: Family, hook: str) -> None:
    """Its handshake ends between the look at it and the taking: it keeps the port, and the new flow has none."""
    world, points = racing_world.world, racing_world.points
    held = half_open(racing_world, fam, hook)
    points.let_in(
        "RECLAIM_FLOW", noted(world, fam.version, lambda: (held.answer("SA"), held.send("A"), held.answer("A")))
    )
    late = newcomer(held, 0)
    late.send("S")
    assert points.passed("RECLAIM_FLOW")
    assert late.went is None
    assert held.stays()
    assert held.is_answered()


def test_a_port_is_another_ones_already_when_it_is_freed(racing_world: RacingWorld, fam: Family, hook: str) -> None:
    """Two new flows need the port of a third at once: one gets it, the other one has none."""
    world, points = racing_world.world, racing_world.points
    held = half_open(racing_world, fam, hook)
    quick, late = newcomer(held, 0), newcomer(held, 1)
    points.let_in("RECLAIM_SLOT", noted(world, fam.version, lambda: quick.send("S")))
    late.send("S")
    assert points.passed("RECLAIM_SLOT")
    assert late.went is None
    assert quick.is_answered("SA")
    assert quick.stays()


# --- a table of another size ---


@pytest.fixture(scope="module")
def moving_world() -> Iterator[tuple[Change, RacePoints]]:
    """Load programs for tables that grow, those that use both tables with race points."""
    points = RacePoints()
    try:
        for change in changes(SMALL, GROWN, race_artifact(), points.splice):
            yield change, points
    finally:
        points.close()


@pytest.mark.parametrize("flags", ["R", "FA"])
@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_a_flow_changes_while_it_is_moved(
    moving_world: tuple[Change, RacePoints], fam: Family, flags: str, *, local: bool
) -> None:
    """Its entry is in both tables when a packet closes the connection in the old one: the new one has it, too."""
    change, points = moving_world
    change.reset()
    talk = Talk(change, fam, TCP, local=local)
    talk.open(40000)
    change.begin()
    closing = noted(change.world, fam.version, lambda: talk.send(40000, flags), names=("flow",))
    points.let_in("ENTRY_LEAVE", {("flow_old", at): word for (_, at), word in closing.items()})
    change.all()
    assert points.passed("ENTRY_LEAVE")
    change.end()
    moved = table.only(change.world, fam)
    assert (moved.state, moved.fin) == ((table.CLOSING, 0) if flags == "R" else (table.EST, 1))


# --- a flow is deleted ---


@pytest.mark.parametrize("reset", [False, True], ids=["delete", "reset"])
def test_a_flow_that_changes_while_it_is_deleted_stays(
    racing_world: RacingWorld, fam: Family, hook: str, *, reset: bool
) -> None:
    """Its client's FIN comes after the entry was compared."""
    world, points = racing_world.world, racing_world.points
    talk = caller(world, fam, hook)
    talk.establish()
    family = model.Family(fam.version)
    flows = [raw for piece in raw_flows(world.maps, family) for raw in piece]
    points.let_in("FLOW_DELETE", noted(world, fam.version, lambda: talk.send("FA")))
    fds = world.maps.fds
    sizes = dataclasses.replace(SMALL, flow4=ENTRIES, flow6=ENTRIES, snat4=64, snat6=64)
    config = pack_config(ONE_PORT, sizes, SEEDS, jiffies.hz())
    made = racing_world.clock.splice(points.splice(race_artifact(), fds), fds)
    with FlowDeleter(fds, config, made, reset=reset) as deleter:
        assert deleter.delete(family, flows) == 0
        assert points.passed("FLOW_DELETE")
        assert table.only(world, fam).fin == 1
        assert table.held_slots(world, fam) == 1
        assert talk.stays()
        assert deleter.delete(family, [raw for piece in raw_flows(world.maps, family) for raw in piece]) == 1
    assert table.held_slots(world, fam) == 0
