"""Tables of another size while flows live: every flow keeps its backend and its SNAT port, at every step of the change."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.load import program_settings
from lbagent.bpf.load.loader import Generation, load_generation
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.migrate import MigrationResult, migrate_flows, resized_flow_maps, try_migration
from lbagent.kernel import bpf_prog, jiffies
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import LB_MIGRATE, MigrateWhat
from lbagent.maps.reasons import Reason
from lbagent.maps.specs import Sizes, map_specs
from lbagent.model.family import Family as IpFamily
from tests.packet import craft, expect, table
from tests.packet.caller import reply, request
from tests.packet.craft import Family
from tests.packet.harness import DEFAULTS, SEEDS, SMALL, Splice, open_world
from tests.packet.world import TCP, UDP, XDP, BackendRow, Outcome, World

pytestmark = pytest.mark.early

GROWN = dataclasses.replace(SMALL, flow4=1 << 14, flow6=1 << 13, snat4=1 << 16, snat6=1 << 15)
FEWER = dataclasses.replace(SMALL, flow4=1 << 10, flow6=1 << 9)
TINY = dataclasses.replace(SMALL, flow4=32, flow6=32)
FLOWS = 40


@dataclass
class Change:
    """Three sets of programs: of the old maps, of both, of the new ones."""

    world: World
    old: Sizes
    new: Sizes
    both: Generation
    after: Generation
    maps_after: KernelMaps
    before: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Install the programs that use both kinds of maps."""
        self.world.programs = self.both.programs

    def some(self, share: float) -> None:
        """Move the first part of every table."""
        for family in IpFamily:
            count = int(getattr(self.old, f"flow{family}") * share)
            data = LB_MIGRATE.pack(0, count, MigrateWhat.FLOWS, 0, 0, 0, 0, 0)
            bpf_prog.prog_test_run(self.both.programs[f"migrate{family}"], data, repeat=count)

    def all(self) -> dict[str, MigrationResult]:
        """Move everything."""
        return migrate_flows(self.both.programs, self.old, self.new)

    def end(self) -> None:
        """Let the programs of the new maps take over, and forget the old maps."""
        for name in resized_flow_maps(self.old, self.new):
            self.world.clear(name)
        self.world.programs, self.world.maps = self.after.programs, self.maps_after

    def reset(self) -> None:
        """Go back to empty old maps."""
        for name in resized_flow_maps(self.old, self.new):
            with self.maps_after.window(name, 0, self.maps_after.specs[name].value_size) as view:
                view[:] = bytes(len(view))
        self.world.maps, self.world.programs = self.kept, self.before
        self.world.reset()

    def __post_init__(self) -> None:
        """Remember how it began."""
        self.kept, self.before = self.world.maps, dict(self.world.programs)


def changes(
    old: Sizes,
    new: Sizes,
    artifact: Artifact | None = None,
    splice: Splice | None = None,
    options: ProgramSettings = DEFAULTS,
) -> Iterator[Change]:
    """Load all three sets; `splice` changes the programs that use both kinds of maps, and those of the new ones."""
    programs = artifact or builder.ensure_artifact()
    with ExitStack() as stack:
        world = stack.enter_context(open_world(options, sizes=old))
        assert isinstance(world.maps, KernelMaps)
        fds = dict(world.maps.fds)
        for name in resized_flow_maps(old, new):
            fds[f"{name}_old"], fds[name] = fds[name], pins.create_map(map_specs(new)[name])
        made = []
        for before in (old, None):
            config = program_settings.pack_config(options, new, SEEDS, jiffies.hz(), before)
            made.append(load_generation(splice(programs, fds) if splice else programs, fds, config))
            stack.callback(made[-1].close)
        yield Change(world, old, new, *made, KernelMaps("", new, fds))


@pytest.fixture(scope="module", params=["grow", "shrink", "spill"])
def loaded_change(request: pytest.FixtureRequest) -> Iterator[Change]:
    """Each kind of change, loaded once: larger, smaller, and much too small."""
    yield from changes(SMALL, {"grow": GROWN, "shrink": FEWER, "spill": TINY}[request.param])


@pytest.fixture
def change_world(loaded_change: Change) -> Change:
    """A change with nothing in its maps."""
    loaded_change.reset()
    return loaded_change


class Talk:
    """Flows of one service, and what each of them has."""

    def __init__(self, change: Change, fam: Family, proto: int, *, local: bool) -> None:
        self.change, self.fam, self.proto = change, fam, proto
        world = change.world
        self.backends: list[BackendRow] = [
            world.backend(fam, fam.local(n) if local else fam.remote(n), 8080, proto, local=local) for n in (1, 2, 3)
        ]
        self.service = world.service(fam, fam.vip, 80, proto, self.backends)
        self.places: dict[int, tuple[tuple[str, int], tuple[str, int]]] = {}

    def send(self, port: int, flags: str = "A") -> Outcome:
        frame = request(self.fam, self.proto, self.fam.client, port, (self.fam.vip, 80), flags)
        return self.change.world.run(XDP, frame)

    def open(self, *ports: int) -> None:
        for port in ports:
            out = self.send(port, "S")
            self.places[port] = expect.destination(out), expect.source(out)
            self.answer(port)
            self.send(port)  # only now TCP is established: until then its entry may be given to another flow

    def answer(self, port: int) -> None:
        """The backend answers; the client must see its frontend."""
        endpoint, source = self.places[port]
        backend = next(b for b in self.backends if b.endpoint == endpoint)
        frame = reply(self.fam, self.proto, backend, (self.fam.client, port) if backend.local else source, "SA")
        if backend.local:
            out = expect.at_pod(self.change.world, frame)
        else:
            out = self.change.world.run(XDP, frame, self.change.world.net.lb1)
        assert out.counted == {Reason.FWD_REPLY: 1}, port
        assert expect.source(out) == (self.fam.vip, 80)
        assert expect.destination(out) == (self.fam.client, port)

    def check(self) -> None:
        """Every flow has its old backend, in both directions, and no port is given twice."""
        for port, place in self.places.items():
            out = self.send(port)
            assert (expect.destination(out), expect.source(out)) == place, port
            assert not out.counted[Reason.FWD_NEW] + out.counted[Reason.FWD_RESELECTED]
            self.answer(port)
        assert len(set(self.places.values())) == len(self.places)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_flows_keep_their_place(change_world: Change, fam: Family, proto: int, *, local: bool) -> None:
    """Before, under both programs, with a half moved, with all moved, after."""
    change = change_world
    talk = Talk(change, fam, proto, local=local)
    talk.open(*range(40000, 40000 + FLOWS))
    change.begin()
    talk.check()
    talk.open(*range(41000, 41000 + FLOWS))
    change.some(0.5)
    talk.check()
    talk.open(*range(42000, 42000 + FLOWS // 4))
    done = change.all()[fam.version]
    assert (done.lost, done.again) == (0, 0)
    talk.check()
    assert change.all()[fam.version] == MigrationResult()
    change.end()
    talk.check()
    talk.open(*range(43000, 43000 + FLOWS // 4))
    talk.check()


def test_what_changes_meanwhile_is_taken_along(change_world: Change, fam: Family) -> None:
    """A SYN that moves a flow, a backend that goes: the old entry changes like any other, and its new contents are moved."""
    change = change_world
    talk = Talk(change, fam, TCP, local=False)
    talk.open(*range(40000, 40010))
    change.begin()
    gone = talk.backends[0]
    change.world.slot(talk.service, 1, target=talk.backends[1].id)
    change.world.remove_backend(gone)
    moved = [port for port, place in talk.places.items() if place[0] == gone.endpoint]
    assert moved
    for port in moved:
        assert talk.send(port).counted == {Reason.REJECT_BACKEND_GONE: 1}
    talk.open(*moved)
    talk.check()
    change.all()
    talk.check()
    change.end()
    talk.check()


def test_a_service_that_is_gone_keeps_its_flows(change_world: Change, fam: Family) -> None:
    """What is found only in the old table is not taken for a new flow."""
    change = change_world
    talk = Talk(change, fam, TCP, local=False)
    talk.open(*range(40000, 40010))
    change.world.slot(talk.service, 0, target=talk.service.target, count=0)
    change.begin()
    talk.check()
    change.some(0.5)
    talk.check()
    change.all()
    change.end()
    talk.check()


def test_last_seen_and_next_hop_are_kept(change_world: Change, fam: Family) -> None:
    """An idle flow is not younger for having been moved."""
    change = change_world
    change.world.nexthop(change.world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    talk = Talk(change, fam, TCP, local=True)
    talk.open(40000)
    talk.answer(40000)  # only now the next hop to the client is learned
    table.age(change.world, fam, 7)
    before = [dataclasses.replace(flow, position=0) for flow in table.flows(change.world, fam)]
    hops = [word[-1:] for word in seen_words(change.world, fam)]
    assert hops != [(0,)]
    change.begin()
    change.all()
    change.end()
    assert [dataclasses.replace(flow, position=0) for flow in table.flows(change.world, fam)] == before
    assert [word[-1:] for word in seen_words(change.world, fam)] == hops


def seen_words(world: World, fam: Family) -> list[tuple[int, ...]]:
    """Return (last seen, bucket word, service, next hop) of each flow."""
    size, at = (32, 24) if fam.version == 4 else (64, 48)
    out = []
    for flow in table.flows(world, fam):
        with world.maps.window(f"lb{fam.version}_flow", flow.position * size + at, 8) as view:
            out.append(struct.unpack("=4H", view))
    return out


def test_slots_of_spilled_flows_are_moved(fam: Family) -> None:
    """A flow in the spill map keeps its port, although no entry of the table refers to its slot; and its bucket has the stamp."""
    old = dataclasses.replace(SMALL, flow4=8, flow6=8, snat4=1 << 15, snat6=1 << 15, spill=4096)
    new = dataclasses.replace(old, flow4=1 << 10, flow6=1 << 10, snat4=1 << 16, snat6=1 << 16)
    for change in changes(old, new):
        talk = Talk(change, fam, TCP, local=False)
        talk.open(*range(40000, 40008))
        for port in range(41000, 41010):  # the table is full: these go to the spill map (a packet that is no SYN)
            out = talk.send(port, "A")
            talk.places[port] = expect.destination(out), expect.source(out)
            talk.answer(port)
        change.begin()
        talk.check()
        assert change.all()[fam.version].lost == 0
        talk.check()
        change.end()
        talk.check()


def test_a_try_says_what_has_no_room_and_changes_nothing(loaded_change: Change, fam: Family) -> None:
    """Live flows whose slots fall together in a smaller table are counted before anything is changed."""
    change = loaded_change
    change.reset()
    talk = Talk(change, fam, TCP, local=False)
    talk.open(*range(40000, 40200))
    small = dataclasses.replace(change.old, snat4=64, snat6=64)
    assert isinstance(change.world.maps, KernelMaps)
    config = program_settings.pack_config(ProgramSettings(), small, SEEDS, jiffies.hz(), change.old)
    tried = try_migration(builder.ensure_artifact(), config, change.world.maps.fds, change.old, small)
    assert 136 <= tried[fam.version].lost < 200  # at most one flow a slot
    talk.check()


@pytest.mark.parametrize(("before", "after"), [(1 << 8, 1 << 10), (1 << 10, 1 << 8)])
def test_a_new_flow_takes_no_slot_an_old_one_will_need(fam: Family, before: int, after: int) -> None:
    """While both kinds of maps are in use: a flow that had room in the trial has room afterwards too, however many new ones came meanwhile."""
    old = dataclasses.replace(SMALL, snat4=before, snat6=before)
    new = dataclasses.replace(SMALL, snat4=after, snat6=after)
    for change in changes(old, new):
        talk = Talk(change, fam, TCP, local=False)
        talk.open(*range(40000, 40100))
        config = program_settings.pack_config(ProgramSettings(), new, SEEDS, jiffies.hz(), old)
        assert isinstance(change.world.maps, KernelMaps)
        lost = try_migration(builder.ensure_artifact(), config, change.world.maps.fds, old, new)[fam.version].lost
        assert (lost > 0) is (after < before)
        change.begin()
        talk.open(*range(41000, 41060))
        assert change.all()[fam.version].lost == lost
        if not lost:
            change.end()
            talk.check()


@pytest.mark.parametrize("what", [MigrateWhat.FLOWS, MigrateWhat.STAMPS])
def test_a_run_ends_where_it_was_told_to(change_world: Change, fam: Family, what: MigrateWhat) -> None:
    """Three positions from the fifth on, which is no whole step of any kind."""
    change_world.begin()
    data = LB_MIGRATE.pack(5, 3, what, 0, 0, 0, 0, 0)
    out = bpf_prog.prog_test_run(change_world.both.programs[f"migrate{fam.version}"], data, repeat=3)
    assert LB_MIGRATE.unpack(out.data[: LB_MIGRATE.size])[:2] == (8, 0)
