"""Runs migrate4 and migrate6, which move flows and SNAT slots to maps of another size (docs/datapath.md, "Resizing")."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct

from lbagent.bpf.load.loader import generation_maps, load_program, with_old_maps
from lbagent.errors import LbError
from lbagent.kernel import bpf_prog
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.layout import FLOW_WAYS, LB_MIGRATE, MigrateWhat
from lbagent.maps.pins import create_map
from lbagent.maps.specs import OLD_MAPS, Sizes, map_specs
from lbagent.model.family import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lbagent.bpf.compiler.artifact import Artifact

POSITIONS_PER_RUN = 1 << 17  # positions a call
MAX_PASSES = 8  # a flow that changes while it is moved is retried; eight changes in a row practically never happen


class MigrationResult(Struct):
    """The result for one family's flows. `lost` found no room; `again` stayed where they were."""

    flows: int = 0
    spilled: int = 0
    lost: int = 0
    again: int = 0


def resized_flow_maps(old: Sizes, new: Sizes) -> list[str]:
    """Return the flow and SNAT maps whose sizes differ."""
    return [name for name in OLD_MAPS.values() if map_specs(old)[name] != map_specs(new)[name]]


def migrate_flows(
    programs: Mapping[str, int], old: Sizes, new: Sizes, *, dry: bool = False
) -> dict[Family, MigrationResult]:
    """Move all flows, by programs loaded for `old` -> `new`; return the result by family.

    May be repeated, also after a crash. `dry`: the old maps stay unchanged. Blocks for some 100 ns per position.
    """
    out = {}
    for family in Family:
        fd = programs[f"migrate{family}"]
        flows, slots = (getattr(old, f"{name}{family}") for name in ("flow", "snat"))
        flows_after, slots_after = (getattr(new, f"{name}{family}") for name in ("flow", "snat"))
        out[family] = done = MigrationResult()
        if (flows, slots) == (flows_after, slots_after):
            continue
        _pass(fd, MigrateWhat.FLOWS, flows, done, dry)
        for _ in range(MAX_PASSES):
            if not done.again:
                break
            done.again = 0
            _pass(fd, MigrateWhat.FLOWS, flows, done, dry)
        if slots != slots_after:
            rest = MigrationResult()
            _pass(fd, MigrateWhat.SNAT_SLOTS, slots, rest, dry)
            done.lost = max(done.lost, rest.lost)  # the slot of a lost flow is found again
        if flows != flows_after:
            _pass(fd, MigrateWhat.STAMPS, max(flows, flows_after) // FLOW_WAYS, done, dry)
    return out


def _pass(fd: int, what: MigrateWhat, count: int, done: MigrationResult, dry: bool) -> None:
    for first in range(0, count, POSITIONS_PER_RUN):
        length = min(POSITIONS_PER_RUN, count - first)
        data = LB_MIGRATE.pack(first, length, what, dry, 0, 0, 0, 0)
        with kernel_errors("test run", "the program that moves flows"):
            out = bpf_prog.prog_test_run(fd, data, repeat=length)  # a run does at least one position
        _, left, _, _, flows, spilled, lost, again = map(int, LB_MIGRATE.unpack(out.data[: LB_MIGRATE.size]))
        if left:
            raise LbError(f"the mover stopped {left} positions early; flows continue where they are")
        done.flows += flows
        done.spilled += spilled
        done.lost += lost
        done.again += again


def try_migration(
    artifact: Artifact, config: bytes, maps: Mapping[str, int], old: Sizes, new: Sizes
) -> dict[Family, MigrationResult]:
    """Move into temporary maps; return what would find no room. `maps` are those in use, `config` is for `old` -> `new`."""
    specs = map_specs(new)
    with ExitStack() as stack:
        fds = {**maps, **stack.enter_context(generation_maps(config))}
        for name in resized_flow_maps(old, new):
            fds[f"{name}_old"], fds[name] = maps[name], create_map(specs[name])
            stack.callback(os.close, fds[name])
        for name in ("lb4_spill", "lb6_spill"):
            fds[name] = create_map(specs[name])
            stack.callback(os.close, fds[name])
        programs = {}
        for name in ("migrate4", "migrate6"):
            programs[name] = load_program(artifact.programs[name], with_old_maps(fds))
            stack.callback(os.close, programs[name])
        return migrate_flows(programs, old, new, dry=True)
