"""Pinned maps to other sizes, with every live flow, while packets go on: at start, and at SIGHUP for flow tables and SNAT slots.

New maps are made beside the old ones, under `resize/`. Then programs that know both take over (docs/datapath.md, "Resizing"),
flows and slots are moved, programs that know only the new maps follow, and the pins are exchanged. Nothing is held back.

Two marks make it safe to die anywhere. Without a mark the new maps are thrown away. From `moving` on new flows may be in the
new maps, so the next start goes on from there: every step can be done again. After `moved` only the pins are to be exchanged.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from msgspec import Struct

from lbagent.bpf.build.artifact import Artifact
from lbagent.bpf.load import attach, datapath, generation
from lbagent.bpf.load import program_settings as records
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.program_settings import Settings
from lbagent.bpf.run.migrate import Moved, move, moved_tables, try_move
from lbagent.errors import ConfigError, LbError, NotFound
from lbagent.kernel import bpffs, jiffies
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.lbmaps import SIZE_OPTION
from lbagent.maps.specs import OLD_MAPS, MapSpec, MapType, Sizes, counter_row, counter_rows
from lbagent.model.family import Family

log = logging.getLogger(__name__)
STAGE, MOVING, MOVED = "resize", "moving", "moved"
FLOW_MAPS = frozenset(OLD_MAPS.values())
NOT_COPIED = FLOW_MAPS | {"lb_live", "lb4_frag", "lb6_frag"}  # by the mover; counted anew; forgotten in seconds
FIELDS = {"lb4_flow": "flow4", "lb6_flow": "flow6", "lb4_snat": "snat4", "lb6_snat": "snat6"}
COPY_BYTES = 1 << 20
SPILL_SHARE = 4  # a smaller flow table may push as many flows into a quarter of the spill map (two rows a flow)


class Outcome(Struct):
    """`sizes` are those the maps have now, `problems` say why they are not the wanted ones; `programs` are in force on them."""

    sizes: Sizes
    problems: list[str]
    fds: Mapping[str, int] = {}
    programs: Datapath | None = None

    def close(self) -> None:
        """Give the descriptors back, where nobody goes on with them."""
        if self.programs is not None:
            self.programs.close()
        for fd in self.fds.values():
            os.close(fd)


def resize_at_start(bpffs: str, wanted: Sizes, artifact: Callable[[], Artifact], settings: Settings) -> Outcome:
    """Bring pinned maps of other sizes to `wanted` before they are opened; finish first what was broken off.

    What cannot be done leaves the old sizes serving and is a problem of the outcome. Sizes that cannot be changed in place
    (the Maglev tables') are left for KernelMaps.open to refuse. Raises LbError where a broken-off change cannot be finished.
    """
    _finish(bpffs, artifact, settings)
    try:
        present = pins.pinned_sizes(bpffs)
    except NotFound:
        return Outcome(wanted, [])
    if present == wanted or present.maglev_size != wanted.maglev_size:
        return Outcome(wanted, [])
    with KernelMaps.open(bpffs, present) as maps:
        outcome = resize(maps, wanted, artifact, settings)
    outcome.close()
    return outcome


def resize(maps: KernelMaps, wanted: Sizes, artifact: Callable[[], Artifact], settings: Settings) -> Outcome:
    """Bring maps that are in use to `wanted`. The caller takes over what the outcome holds. Raises LbError as `resize_at_start`."""
    stage = pins.pin_dir(maps.bpffs) / STAGE
    if stage.exists():
        raise LbError(f"a change of sizes was broken off ({stage}); it has to be finished first")
    began = time.monotonic()
    try:
        _check_backends(maps, wanted)
        built = artifact()
        fitting, problems = _fitting(maps, wanted, built, settings)
        if fitting == maps.sizes:
            return Outcome(fitting, problems)
        change = _Change.anew(maps, fitting, settings)
    except LbError as error:
        log.error("the maps keep their sizes", extra={"error": str(error)})
        return Outcome(maps.sizes, [f"the maps keep their sizes: {error}"])
    log.info("maps change their sizes; flows are kept", extra={"maps": change.names})
    try:
        change.load(built)
    except LbError as error:
        change.close()
        _drop(stage)
        log.error("the maps keep their sizes", extra={"error": str(error)})
        return Outcome(maps.sizes, [f"the maps keep their sizes: {error}"])
    try:
        outcome = change.run()
    except LbError:
        change.close()
        raise
    outcome.problems[:0] = problems
    log.info("maps have other sizes", extra={"flows": change.flows, "ms": round(1000 * (time.monotonic() - began))})
    return outcome


# --- what a crash or a failure left ---


def broken_off(maps: KernelMaps) -> bool:
    """Say whether a change stopped half-way: flows are in both kinds of maps, and `finish` has to come first."""
    return (pins.pin_dir(maps.bpffs) / STAGE).is_dir()


def finish(maps: KernelMaps, artifact: Callable[[], Artifact], settings: Settings) -> Outcome:
    """Go on with a change that was broken off while flows were being moved. Raises LbError; then it can be tried again."""
    change = _Change.begun(maps, settings)
    log.warning("a change of map sizes was broken off; it is finished now", extra={"maps": change.names})
    try:
        change.load(artifact())
        return change.run()
    except LbError:
        change.close()
        raise


def _finish(bpffs: str, artifact: Callable[[], Artifact], settings: Settings) -> None:
    """Finish or undo what was broken off."""
    root = pins.pin_dir(bpffs)
    stage = root / STAGE
    if (stage / MOVED).is_dir():
        _exchange(root)
    elif (stage / MOVING).is_dir():
        with KernelMaps.open(bpffs, pins.pinned_sizes(bpffs)) as maps:
            finish(maps, artifact, settings).close()
    else:
        _drop(stage)


def _drop(stage: Path) -> None:
    if stage.is_dir():
        for pin in stage.iterdir():
            pin.unlink()
        stage.rmdir()


def _exchange(root: Path) -> None:
    stage = root / STAGE
    for pin in list(stage.iterdir()):
        if pin.name not in (MOVING, MOVED):
            pin.rename(root / pin.name)
    for mark in (MOVING, MOVED):
        if (stage / mark).is_dir():
            (stage / mark).rmdir()
    stage.rmdir()


# --- what fits ---


def _check_backends(maps: KernelMaps, wanted: Sizes) -> None:
    """Refuse before anything is made."""
    if wanted.backends >= maps.sizes.backends:
        return
    for name in ("lb4_backend", "lb6_backend"):
        highest = max((int.from_bytes(key, "little") for key, _ in maps.items(name)), default=0)
        if highest >= wanted.backends:
            raise ConfigError(f"--max-backends {wanted.backends}: backend id {highest} is in use; give more")


def _fitting(maps: KernelMaps, wanted: Sizes, artifact: Artifact, settings: Settings) -> tuple[Sizes, list[str]]:
    """Return `wanted` with the old size of each smaller table that live flows do not fit into, and a sentence for each."""
    problems: list[str] = []
    seeds = generation.pinned_seeds(pins.pin_dir(maps.bpffs))
    old = maps.sizes
    while seeds and any(getattr(wanted, field) < getattr(old, field) for field in FIELDS.values()):
        alone = replace(old, **{field: getattr(wanted, field) for field in FIELDS.values()})
        config = records.pack(settings, alone, seeds, jiffies.hz(), old)
        tried = try_move(artifact, config, maps.fds, old, alone)
        refused = _refused(tried, old, wanted)
        if not refused:
            break
        for name, flows in refused.items():
            before, after = getattr(old, FIELDS[name]), getattr(wanted, FIELDS[name])
            text = (
                f"{name} keeps its {before} entries: {flows} live flows have no room in {after} ({SIZE_OPTION[name]})"
            )
            problems.append(text)
            log.warning(text)
            wanted = replace(wanted, **{FIELDS[name]: before})
    return wanted, problems


def _refused(tried: Mapping[Family, Moved], old: Sizes, wanted: Sizes) -> dict[str, int]:
    """Return the tables that must not shrink, with the flows that have no room. A flow without its slot would break."""
    out = {}
    for family, moved in tried.items():
        slots, flows = (
            getattr(wanted, f"{what}{family}") < getattr(old, f"{what}{family}") for what in ("snat", "flow")
        )
        if slots and moved.lost:
            out[family.map("snat")] = moved.lost
        elif flows and moved.spilled > wanted.spill // SPILL_SHARE:
            out[family.map("flow")] = moved.spilled
    return out


# --- the change ---


class _Change:
    """One change of sizes: maps in use, and maps to come."""

    def __init__(self, maps: KernelMaps, sizes: Sizes, made: dict[str, int], settings: Settings) -> None:
        self._root, self._maps, self._sizes, self._made, self._settings = (
            pins.pin_dir(maps.bpffs),
            maps,
            sizes,
            made,
            settings,
        )
        self.names = list(made)
        self.flows = 0
        self._both: Datapath | None = None
        self._after: Datapath | None = None

    @classmethod
    def anew(cls, maps: KernelMaps, sizes: Sizes, settings: Settings) -> Self:
        """Make and pin the new maps beside the old ones, and copy into them what only the agent writes."""
        before, after = pins.all_specs(maps.sizes), pins.all_specs(sizes)
        stage = pins.pin_dir(maps.bpffs) / STAGE
        change = cls(maps, sizes, {}, settings)
        try:
            stage.mkdir(mode=0o700)
            for name in (name for name, spec in after.items() if spec != before[name]):
                change.names.append(name)
                change._made[name] = pins.create_map(after[name])
                bpffs.pin(change._made[name], stage / name)
            new = KernelMaps(maps.bpffs, sizes, maps.fds | change._made)
            for name in change.names:
                if name not in NOT_COPIED:
                    _copy(maps, new, maps.specs[name])
        except LbError:
            change.close()
            _drop(stage)
            raise
        return change

    @classmethod
    def begun(cls, maps: KernelMaps, settings: Settings) -> Self:
        """Take up a change that was broken off while flows were being moved."""
        stage = pins.pin_dir(maps.bpffs) / STAGE
        sizes = pins.pinned_sizes(maps.bpffs, stage)
        made: dict[str, int] = {}
        with kernel_errors("open", str(stage)):
            for pin in sorted(stage.iterdir()):
                if pin.name not in (MOVING, MOVED):
                    made[pin.name] = bpffs.open_pin(pin)
        return cls(maps, sizes, made, settings)

    def load(self, artifact: Artifact) -> None:
        """Load the programs that know both kinds of maps, and those that know the new ones; attach nothing."""
        fds = self._maps.fds | self._made
        old = {f"{name}_old": self._maps.fds[name] for name in moved_tables(self._maps.sizes, self._sizes)}
        if old:
            self._both = datapath.load(
                self._root, artifact, fds | old, self._sizes, self._settings, old=self._maps.sizes
            )
        self._after = datapath.load(self._root, artifact, fds, self._sizes, self._settings)

    def run(self) -> Outcome:
        """Do it. From here on it only goes forward."""
        assert self._after is not None
        problems: list[str] = []
        attached = bool(attach.attached(self._root))
        self._mark(MOVING)
        if self._both is not None:
            if attached:
                self._both.put_in_force()
            moved = move(self._both.programs, self._maps.sizes, self._sizes)
            self.flows = sum(item.flows + item.spilled for item in moved.values())
            lost = sum(item.lost + item.again for item in moved.values())
            if lost:
                problems.append(f"{lost} flows found no room in the new tables and were lost")
                log.warning("flows found no room in the new tables and were lost", extra={"flows": lost})
        if attached:
            self._after.put_in_force()
        self._mark(MOVED)
        _exchange(self._root)
        if self._both is not None:
            self._both.close()
        return Outcome(self._sizes, problems, self._made, self._after)

    def _mark(self, name: str) -> None:
        (self._root / STAGE / name).mkdir(exist_ok=True)

    def close(self) -> None:
        """Give the descriptors back; what is pinned or attached stays."""
        for item in (self._both, self._after):
            if item is not None:
                item.close()
        pins.close_all(self._made)


def _copy_bytes(old: KernelMaps, new: KernelMaps, name: str, places: tuple[int, int], length: int) -> None:
    source_at, target_at = places
    for offset in range(0, length, COPY_BYTES):
        count = min(COPY_BYTES, length - offset)
        with (
            old.window(name, source_at + offset, count) as source,
            new.window(name, target_at + offset, count) as target,
        ):
            target[:] = source


def _copy(old: KernelMaps, new: KernelMaps, spec: MapSpec) -> None:
    """Copy the entries of one map; of an array as many as fit (ids beyond were refused before)."""
    if spec.name == "lb_metrics":
        before, after = counter_row(old.sizes), counter_row(new.sizes)
        for number in range(min(counter_rows(old.sizes), counter_rows(new.sizes))):
            _copy_bytes(old, new, spec.name, (number * before, number * after), min(before, after))
    elif spec.type is MapType.ARRAY:
        _copy_bytes(old, new, spec.name, (0, 0), min(spec.value_size, new.specs[spec.name].value_size))
    else:
        new.put_many(spec.name, old.items(spec.name))
