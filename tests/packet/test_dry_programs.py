"""The dry programs give the verdict and the bytes of the live ones over the same maps, and change no map."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lbagent.bpf.compiler import builder
from lbagent.bpf.load import program_settings
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.dry_programs import OWN_MAPS, DryPrograms
from lbagent.bpf.tail_calls import AGENT_RUN_PROGRAMS, COMMAND_RUN_PROGRAMS
from lbagent.kernel import jiffies
from lbagent.maps import pins
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.maps.reasons import Reason
from lbagent.maps.specs import F_RDONLY_PROG, TRACE_MAP, MapType
from lbagent.maps.trace_layout import TraceStep
from tests.packet import corpus, craft, expect, table
from tests.packet.churn import Churn
from tests.packet.clock import Clock
from tests.packet.expect import marked
from tests.packet.fuzz import CHURN, SEED, stream
from tests.packet.harness import DEFAULTS, SEEDS, SMALL, open_world
from tests.packet.world import TC_AFTER_XDP, TCP, XDP, Outcome, World, runnable

if TYPE_CHECKING:
    from lbagent.testing.bpf_test_run import Result
    from tests.packet.craft import Family

PACKETS = 20_000
AGE = 3 * table.SLOT_UNIT  # ticks
ALONE = 200  # so many packets meet the dry programs alone between two looks at all maps
PLENTY = 1 << 20  # answers a second: the dry programs have buckets of their own


@contextmanager
def both_worlds(settings: ProgramSettings = DEFAULTS) -> Iterator[tuple[World, DryPrograms]]:
    """Load live and dry programs over the same maps, with one clock that stands still."""
    clock = Clock()
    try:
        with open_world(settings, splice=clock.splice) as world:
            config = program_settings.pack_config(settings, SMALL, SEEDS, jiffies.hz())
            fds = {name: world.maps.fd(name) for name in pins.all_specs(SMALL) if name not in GENERATION_MAPS}
            dry = DryPrograms.load(clock.splice(builder.ensure_dry_artifact(), fds), fds, config)
            try:
                yield world, dry
            finally:
                dry.close()
    finally:
        clock.close()


def contents(world: World) -> Mapping[str, str]:
    """Return a digest of each map's contents, of those that only one run at a time uses, too."""
    out = {}
    for name, spec in world.maps.specs.items():
        if name in GENERATION_MAPS:
            continue
        digest = hashlib.sha256()
        if spec.type is MapType.HASH_OF_MAPS:
            for key, table in sorted(world.maps.maglev(name).items()):
                digest.update(str(key).encode() + table)
        else:
            for key, value in sorted(world.maps.items(name)):
                digest.update(key + value)
        out[name] = digest.hexdigest()
    return out


def same(live: Result, dry: Result) -> bool:
    """Return whether verdict, bytes and metadata are the same."""
    return (live.verdict, live.packet, live.metadata) == (dry.verdict, dry.packet, dry.metadata)


@pytest.mark.slow
def test_dry_programs_do_what_live_ones_do_and_change_nothing() -> None:
    """Mutated packets of every kind, while backends and next hops come and go."""
    rng = random.Random(SEED + 1)
    seen: Counter[str] = Counter()
    with both_worlds(ProgramSettings(reject_rate=PLENTY)) as (world, dry):
        scene = corpus.build(world)
        churn = Churn(scene, rng)
        before: Mapping[str, str] = {}
        with world.net.inside():
            for number, (hook, device, frame) in enumerate(stream(rng, scene, PACKETS, every_length=True)):
                if number % CHURN == 0:
                    churn.step()
                if not runnable(hook, frame):
                    continue
                if number % (10 * ALONE) == 0:
                    before = contents(world)
                found = dry.run(hook, frame, device)
                if number % (10 * ALONE) < ALONE:
                    continue
                if before:
                    assert contents(world) == before
                    before = {}
                live = world.raw(hook, frame, device)
                assert same(live, found.result), (hook, device, frame.hex(), live, found)
                if live.metadata and not frame[6] & 1:
                    again = dry.run(TC_AFTER_XDP, marked(frame), device)
                    assert same(world.raw(TC_AFTER_XDP, marked(frame), device), again.result), frame.hex()
                    seen["left to tc"] += 1
                seen["same" if live.packet == frame else "translated"] += 1
                seen.update(record.step.name for record in found.trace)
    for kind in ("same", "translated", "left to tc", *(step.name for step in TraceStep)):
        assert seen[kind] > 20, seen


@pytest.mark.parametrize("settings", [DEFAULTS, ProgramSettings(announce=True, strict_source=True, new_flows="syn")])
def test_verifier_proves_that_dry_programs_write_to_no_shared_map(settings: ProgramSettings) -> None:
    """Over maps that programs may not write to, the verifier accepts the dry programs, also while flows are being moved."""
    smaller = replace(SMALL, flow4=1 << 10, flow6=1 << 10, snat4=1 << 13, snat6=1 << 13)
    for old in (None, smaller):
        fds: dict[str, int] = {}
        try:
            for name, spec in pins.all_specs(SMALL).items():
                if name in GENERATION_MAPS or name in OWN_MAPS:
                    continue
                nested = spec.type is MapType.HASH_OF_MAPS
                spec = replace(spec, flags=spec.flags | F_RDONLY_PROG)
                fds[name] = pins.create_map(spec, fds["lb_maglev_inner"] if nested else 0)
            config = program_settings.pack_config(settings, SMALL, SEEDS, jiffies.hz(), old)
            DryPrograms.load(builder.ensure_dry_artifact(), fds, config).close()
        finally:
            pins.close_all(fds)


def test_port_of_another_flow_is_reclaimed_in_name_alone(fam: Family) -> None:
    """All SNAT ports are held: the dry run of a new flow takes the one that the live run takes, as often as it is asked."""
    with both_worlds(ProgramSettings(snat_port_min=2000, snat_port_max=2003)) as (world, dry):
        row = world.backend(fam, fam.remote(1), 8080)
        world.service(fam, fam.vip, 80, TCP, [row])
        frames = [craft.frame(craft.tcp(fam, fam.client, 40000 + n, fam.vip, 80, "S")) for n in range(6)]
        with world.net.inside():
            held = {expect.source(Outcome(XDP, 0, world.raw(XDP, frame).packet))[1] for frame in frames[:4]}
            assert held == {2000, 2001, 2002, 2003}
            none_free = dry.run(XDP, frames[4], world.net.lb0)
            assert (TraceStep.REASON, Reason.DROP_SNAT_EXHAUSTED, 0) in none_free.trace
            table.later(world, fam, AGE)
            first, second = (dry.run(XDP, frames[4], world.net.lb0) for _ in range(2))
            assert first == replace(second, result=replace(second.result, duration_ns=first.result.duration_ns))
            assert same(world.raw(XDP, frames[4]), first.result)
            assert (TraceStep.REASON, Reason.FWD_NEW, 0) in first.trace


def test_live_programs_have_no_code_for_the_trace() -> None:
    """No shipped program names the trace, and there are no dry ones of the sockets or of the agent's own runs."""
    live, dry = builder.ensure_artifact().programs, builder.ensure_dry_artifact().programs
    users = {name for name, program in live.items() if any(item.map_name == TRACE_MAP for item in program.relocations)}
    assert not users
    packets = {name for name, program in live.items() if program.context in ("xdp", "tc")}
    assert set(dry) == packets - AGENT_RUN_PROGRAMS - COMMAND_RUN_PROGRAMS
