"""One change of map sizes, which continues after a crash: new maps beside the old ones, flows moved, programs and pins exchanged.

New maps are made beside the old ones, under `resize/`. Then programs that use both take over (docs/datapath.md, "Resizing"),
flows and slots are moved, programs that use only the new maps follow, and the pins are exchanged. No packet is delayed.

Two marks make a crash safe at every step. Without a mark, the new maps are removed. From `moving` on, new flows may be in the new
maps, so the next start continues from there: every step may be repeated. After `moved`, only the pins remain to be exchanged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from msgspec import Struct

from lbagent.bpf.compiler.artifact import Artifact
from lbagent.bpf.load import attach, datapath, generation
from lbagent.bpf.load.datapath import Datapath
from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.migrate import migrate_flows, resized_flow_maps
from lbagent.errors import LbError
from lbagent.kernel import bpffs
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps import pins
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.specs import OLD_MAPS, MapSpec, MapType, Sizes, counter_stripe_bytes, counter_stripes

log = logging.getLogger(__name__)
STAGE, MOVING, MOVED = "resize", "moving", "moved"
# flow and SNAT maps: the mover fills them; lb_live and lb_closing are counted again; fragments and handshakes end in seconds
_NOT_COPIED = frozenset(
    {*OLD_MAPS.values(), "lb_live", "lb_closing", "lb_swept", "lb4_frag", "lb6_frag", "lb_handshake"}
)
_COPY_BYTES = 1 << 20


class ResizeOutcome(Struct):
    """`sizes` are those the maps have now, `problems` the reasons, by map, why they are not the wanted ones.

    `programs` are installed on them.
    """

    sizes: Sizes
    problems: dict[str, str]
    fds: Mapping[str, int] = {}
    programs: Datapath | None = None

    def close(self) -> None:
        """Close the descriptors, if the caller does not use them."""
        if self.programs is not None:
            self.programs.close()
        for fd in self.fds.values():
            os.close(fd)


class ResizeStopped(LbError):
    """A change of sizes stopped half-way. `programs` use the maps of both sizes and belong on the hooks until it is finished."""

    def __init__(self, text: str, programs: Datapath | None) -> None:
        super().__init__(text)
        self.programs = programs


class SizeChange:
    """One change of sizes: maps in use, and new maps."""

    def __init__(self, maps: KernelMaps, sizes: Sizes, made: dict[str, int], settings: ProgramSettings) -> None:
        self._root, self._maps, self._sizes = pins.pin_dir(maps.bpffs), maps, sizes
        self._made, self._settings = made, settings
        self.names = list(made)
        self.flows = 0
        self._leads_over = False
        self._begins = False  # or continues: then hooks may have programs that use old and new maps
        self._before: Datapath | None = None  # of the artifact, on the old maps: only where other programs are in force
        self._both: Datapath | None = None
        self._after: Datapath | None = None

    @classmethod
    def create(cls, maps: KernelMaps, sizes: Sizes, settings: ProgramSettings) -> Self:
        """Make and pin the new maps beside the old ones, and copy the entries that only the agent writes."""
        before, after = pins.all_specs(maps.sizes), pins.all_specs(sizes)
        stage = pins.pin_dir(maps.bpffs) / STAGE
        change = cls(maps, sizes, {}, settings)
        change._begins = True
        try:
            stage.mkdir(mode=0o700)
            for name in (name for name, spec in after.items() if spec != before[name]):
                change.names.append(name)
                change._made[name] = pins.create_map(after[name])
                bpffs.pin(change._made[name], stage / name)
            new = KernelMaps(maps.bpffs, sizes, maps.fds | change._made)
            for name in change.names:
                if name not in _NOT_COPIED:
                    _copy(maps, new, maps.specs[name])
        except LbError:
            change.close()
            drop_stage(stage)
            raise
        return change

    @classmethod
    def begun(cls, maps: KernelMaps, settings: ProgramSettings) -> Self:
        """Resume a change that was interrupted while flows were being moved."""
        stage = pins.pin_dir(maps.bpffs) / STAGE
        sizes = pins.pinned_sizes(maps.bpffs, stage)
        made: dict[str, int] = {}
        with kernel_errors("open", str(stage)):
            for pin in sorted(stage.iterdir()):
                if pin.name not in (MOVING, MOVED):
                    made[pin.name] = bpffs.open_pin(pin)
        return cls(maps, sizes, made, settings)

    def load(self, artifact: Artifact) -> None:
        """Load the programs that use old and new maps, and those that use the new ones; attach nothing.

        Tail calls can be replaced between programs of one source only: if others are in force, those of `artifact` take over first.
        """
        fds = self._maps.fds | self._made
        old = {f"{name}_old": self._maps.fds[name] for name in resized_flow_maps(self._maps.sizes, self._sizes)}
        if old:
            self._leads_over = generation.is_in_force(self._root, artifact, self._maps.fds)
            if self._begins and not self._leads_over and attach.attached(self._root):
                self._before = datapath.load(self._root, artifact, self._maps.fds, self._maps.sizes, self._settings)
                self._leads_over = True
            self._both = datapath.load(
                self._root, artifact, fds | old, self._sizes, self._settings, old=self._maps.sizes
            )
        self._after = datapath.load(self._root, artifact, fds, self._sizes, self._settings)

    def run(self) -> ResizeOutcome:
        """Make the change. It cannot be undone from here on. Raises ResizeStopped; then it can be resumed."""
        try:
            return self._run()
        except LbError as error:
            programs, self._both = self._both, None
            self.close()
            raise ResizeStopped(str(error), programs) from error

    def _run(self) -> ResizeOutcome:
        assert self._after is not None
        attached = bool(attach.attached(self._root))
        if attached and self._before is not None:
            self._before.install()
        self._mark(MOVING)
        if self._both is not None:
            if attached:
                self._both.install(lead_over=self._leads_over)
            moved = migrate_flows(self._both.programs, self._maps.sizes, self._sizes)
            self.flows = sum(item.flows + item.spilled for item in moved.values())
            lost = sum(item.lost + item.again for item in moved.values())
            if lost:
                log.warning("flows found no room in the new tables and were lost", extra={"flows": lost})
        if attached:
            self._after.install()
        self._mark(MOVED)
        exchange_pins(self._root)
        for item in (self._before, self._both):
            if item is not None:
                item.close()
        return ResizeOutcome(self._sizes, {}, self._made, self._after)

    def _mark(self, name: str) -> None:
        (self._root / STAGE / name).mkdir(exist_ok=True)

    def close(self) -> None:
        """Close the descriptors; what is pinned or attached stays."""
        for item in (self._before, self._both, self._after):
            if item is not None:
                item.close()
        pins.close_all(self._made)


def _copy_bytes(old: KernelMaps, new: KernelMaps, name: str, places: tuple[int, int], length: int) -> None:
    source_at, target_at = places
    for offset in range(0, length, _COPY_BYTES):
        count = min(_COPY_BYTES, length - offset)
        with (
            old.window(name, source_at + offset, count) as source,
            new.window(name, target_at + offset, count) as target,
        ):
            target[:] = source


def _copy(old: KernelMaps, new: KernelMaps, spec: MapSpec) -> None:
    """Copy the entries of one map; of an array as many as fit (larger ids were rejected before)."""
    if spec.name == "lb_metrics":
        before, after = counter_stripe_bytes(old.sizes), counter_stripe_bytes(new.sizes)
        for number in range(min(counter_stripes(old.sizes), counter_stripes(new.sizes))):
            _copy_bytes(old, new, spec.name, (number * before, number * after), min(before, after))
    elif spec.type is MapType.ARRAY:
        _copy_bytes(old, new, spec.name, (0, 0), min(spec.value_size, new.specs[spec.name].value_size))
    else:
        new.put_many(spec.name, old.items(spec.name))


def drop_stage(stage: Path) -> None:
    """Remove the new maps: nothing was moved into them yet."""
    if stage.is_dir():
        for pin in stage.iterdir():
            pin.unlink()
        stage.rmdir()


def exchange_pins(root: Path) -> None:
    """Rename the pins of the new maps over the old ones, and remove the marks. May be repeated."""
    stage = root / STAGE
    for pin in list(stage.iterdir()):
        if pin.name not in (MOVING, MOVED):
            pin.rename(root / pin.name)
    for mark in (MOVING, MOVED):
        if (stage / mark).is_dir():
            (stage / mark).rmdir()
    stage.rmdir()
