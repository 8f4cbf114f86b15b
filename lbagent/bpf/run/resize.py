"""Changes the sizes of pinned maps with all live flows, under traffic: at start, and at SIGHUP for flow tables and SNAT slots.

This module decides what fits and reports the outcome; size_change.py makes the change, and finishes one that a crash interrupted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.load import generation
from lbagent.bpf.load import program_settings as records
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.migrate import MigrationResult, try_migration
from lbagent.bpf.run.size_change import MOVED, MOVING, STAGE, ResizeOutcome, SizeChange, drop_stage, exchange_pins
from lbagent.errors import ConfigError, LbError, NotFound
from lbagent.kernel import jiffies
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.layout import PATH
from lbagent.maps.lbmaps import SIZE_OPTION
from lbagent.maps.map_names import family_map
from lbagent.maps.specs import Sizes
from lbagent.model.family import Family

log = logging.getLogger(__name__)
FIELDS = {"lb4_flow": "flow4", "lb6_flow": "flow6", "lb4_snat": "snat4", "lb6_snat": "snat6"}
SIZES = "map sizes"  # key of a problem that concerns more than one map
SPILL_SHARE = 4  # a smaller flow table may move so many flows to a quarter of the spill map (two rows a flow)


def resize_at_start(
    bpffs: str, wanted: Sizes, artifact: Callable[[], Artifact], settings: ProgramSettings
) -> ResizeOutcome:
    """Change pinned maps to the sizes `wanted` before they are opened; first finish an interrupted change.

    If a change is not possible, the old sizes continue to serve, and the outcome has a problem. Sizes that cannot be changed in
    place (the Maglev tables') are left for KernelMaps.open to reject. Raises LbError if an interrupted change cannot be finished.
    """
    pins.check_flow_layout(bpffs)
    _finish(bpffs, artifact, settings)
    try:
        present = pins.pinned_sizes(bpffs)
    except NotFound:
        return ResizeOutcome(wanted, {})
    if present == wanted or present.maglev_size != wanted.maglev_size:
        return ResizeOutcome(wanted, {})
    with KernelMaps.open(bpffs, present, events=settings.events) as maps:
        outcome = resize(maps, wanted, artifact, settings)
    outcome.close()
    return outcome


def resize(
    maps: KernelMaps, wanted: Sizes, artifact: Callable[[], Artifact], settings: ProgramSettings
) -> ResizeOutcome:
    """Change maps in use to `wanted`. The caller owns what the outcome, or ResizeStopped, holds.

    Raises LbError as `resize_at_start`.
    """
    stage = pins.pin_dir(maps.bpffs) / STAGE
    if stage.exists():
        raise LbError(f"an interrupted change of map sizes ({stage}) has to be finished first")
    began = time.monotonic()
    try:
        _check_backends(maps, wanted)
        built = artifact()
        fitting, problems = _fitting(maps, wanted, built, settings)
        if fitting == maps.sizes:
            return ResizeOutcome(fitting, problems)
        change = SizeChange.create(maps, fitting, settings)
    except LbError as error:
        log.error("the maps keep their sizes", extra={"error": str(error)})
        return ResizeOutcome(maps.sizes, {SIZES: f"the maps keep their sizes: {error}"})
    log.info("map sizes are being changed; flows are kept", extra={"maps": change.names})
    try:
        change.load(built)
    except LbError as error:
        change.close()
        drop_stage(stage)
        log.error("the maps keep their sizes", extra={"error": str(error)})
        return ResizeOutcome(maps.sizes, {SIZES: f"the maps keep their sizes: {error}"})
    outcome = change.run()
    outcome.problems.update(problems)
    log.info("map sizes were changed", extra={"flows": change.flows, "ms": round(1000 * (time.monotonic() - began))})
    return outcome


# --- what a crash or a failure left ---


def is_unfinished(maps: KernelMaps) -> bool:
    """Return whether a change stopped half-way: flows are in old and new maps, and `finish_resize` must run first."""
    return (pins.pin_dir(maps.bpffs) / STAGE).is_dir()


def finish_resize(maps: KernelMaps, artifact: Callable[[], Artifact], settings: ProgramSettings) -> ResizeOutcome:
    """Continue a change that was interrupted while flows were being moved. Raises LbError; then it may be repeated."""
    change = SizeChange.begun(maps, settings)
    log.warning("an interrupted change of map sizes is being finished", extra={"maps": change.names})
    try:
        change.load(artifact())
    except LbError:
        change.close()
        raise
    return change.run()


def _finish(bpffs: str, artifact: Callable[[], Artifact], settings: ProgramSettings) -> None:
    """Finish or undo an interrupted change."""
    root = pins.pin_dir(bpffs)
    stage = root / STAGE
    if (stage / MOVED).is_dir():
        exchange_pins(root)
    elif (stage / MOVING).is_dir():
        with KernelMaps.open(bpffs, pins.pinned_sizes(bpffs), events=settings.events) as maps:
            finish_resize(maps, artifact, settings).close()
    else:
        drop_stage(stage)


# --- what fits ---


def _check_backends(maps: KernelMaps, wanted: Sizes) -> None:
    """Check the sizes before anything is created."""
    if wanted.backends >= maps.sizes.backends:
        return
    for name in ("lb4_backend", "lb6_backend"):
        highest = max((int.from_bytes(key, "little") for key, _ in maps.items(name)), default=0)
        if highest >= wanted.backends:
            raise ConfigError(f"--max-backends {wanted.backends}: backend id {highest} is in use; give a larger number")
    from lbagent.maps.consistency import live_paths

    for family in Family:
        highest = max(
            (ident for ident, _ in live_paths(maps, family_map(family, "path"), PATH[family].size)), default=0
        )
        if highest >= wanted.backends:
            raise ConfigError(
                f"--max-backends {wanted.backends}: id {highest} of an extra SNAT address is in use;"
                " start once without --snat-address"
            )


def _fitting(
    maps: KernelMaps, wanted: Sizes, artifact: Artifact, settings: ProgramSettings
) -> tuple[Sizes, dict[str, str]]:
    """Return `wanted` with the old size of each table that is too small for the live flows, and a message for each."""
    problems: dict[str, str] = {}
    seeds = generation.pinned_seeds(pins.pin_dir(maps.bpffs))
    old = maps.sizes
    while seeds and any(getattr(wanted, field) < getattr(old, field) for field in FIELDS.values()):
        alone = replace(old, **{field: getattr(wanted, field) for field in FIELDS.values()})
        config = records.pack_config(settings, alone, seeds, jiffies.hz(), old)
        tried = try_migration(artifact, config, maps.fds, old, alone)
        refused = _refused(tried, old, wanted)
        if not refused:
            break
        for name, flows in refused.items():
            before, after = getattr(old, FIELDS[name]), getattr(wanted, FIELDS[name])
            text = (
                f"{name} keeps its {before} entries: {flows} live flows have no room in {after} ({SIZE_OPTION[name]})"
            )
            problems[name] = text
            log.warning(text)
            wanted = replace(wanted, **{FIELDS[name]: before})
    return wanted, problems


def _refused(tried: Mapping[Family, MigrationResult], old: Sizes, wanted: Sizes) -> dict[str, int]:
    """Return the tables that must not shrink, with the flows that have no room. A flow without its slot would break."""
    out = {}
    for family, moved in tried.items():
        slots, flows = (
            getattr(wanted, f"{what}{family}") < getattr(old, f"{what}{family}") for what in ("snat", "flow")
        )
        if slots and moved.lost:
            out[family_map(family, "snat")] = moved.lost
        elif flows and moved.spilled > wanted.spill // SPILL_SHARE:
            out[family_map(family, "flow")] = moved.spilled
    return out
