"""Pinned maps to other sizes, with every live flow: what the agent does at start when the configured sizes are not the pinned ones.

New maps are made and filled beside the old ones while the old programs go on serving. Then, for some tens of milliseconds,
programs that let no new flow begin (their first packets are sent again) take over, what changed meanwhile is copied, the
pins are exchanged, and programs on the new maps follow, first still holding new flows back, until every device has them.

A crash leaves either the old maps or, once the mark `moved` is there, the new ones: the next start finishes the exchange.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from lbagent.bpf import attach, clock, datapath, generation
from lbagent.bpf.artifact import Artifact
from lbagent.bpf.datapath import Datapath
from lbagent.bpf.settings import Settings, tick_shift
from lbagent.errors import ConfigError, NotFound
from lbagent.maps import bpfsys, pins
from lbagent.maps.flows import Hash, Mover
from lbagent.maps.kernel import KernelMaps
from lbagent.maps.layout import MapSpec, MapType, Sizes

log = logging.getLogger(__name__)
STAGE, MARK = "resize", "moved"
FLOW_MAPS = frozenset({"lb4_flow", "lb6_flow", "lb4_snat", "lb6_snat"})
NOT_COPIED = FLOW_MAPS | {"lb_live", "lb4_frag", "lb6_frag"}  # by Mover; counted anew; forgotten in seconds
COPY_BYTES = 1 << 20


def resize(bpffs: str, wanted: Sizes, artifact: Callable[[], Artifact], settings: Settings) -> bool:
    """Bring pinned maps of other sizes to `wanted`; return whether there was anything to do.

    A size that cannot be changed in place (the Maglev tables') is left for KernelMaps.open to refuse. Raises ConfigError
    when what is there does not fit, KernelError; then the old maps and programs go on.
    """
    root = pins.pin_dir(bpffs)
    _finish(root)
    try:
        present = pins.pinned_sizes(bpffs)
    except NotFound:
        return False
    names = [name for name, spec in pins.all_specs(wanted).items() if spec != pins.all_specs(present)[name]]
    if not names or present.maglev_size != wanted.maglev_size:
        return False
    log.warning("maps change their size; live flows are kept", extra={"maps": names})
    began = time.monotonic()
    with KernelMaps.open(bpffs, present) as old:
        move = _Move(root, old, wanted, names, settings)
        try:
            move.run(artifact)
        finally:
            move.close()
    log.info("maps have their new size", extra={"flows": move.flows, "ms": round(1000 * (time.monotonic() - began))})
    return True


def _finish(root: Path) -> None:
    """Finish or undo what a crash left."""
    stage = root / STAGE
    if not stage.is_dir():
        return
    if (stage / MARK).is_dir():
        _exchange(root)
        return
    for pin in stage.iterdir():
        pin.unlink()
    stage.rmdir()


def _exchange(root: Path) -> None:
    stage = root / STAGE
    for pin in list(stage.iterdir()):
        if pin.name != MARK:
            pin.rename(root / pin.name)
    (stage / MARK).rmdir()
    stage.rmdir()


class _Move:
    """One change of sizes."""

    def __init__(self, root: Path, old: KernelMaps, wanted: Sizes, names: Sequence[str], settings: Settings) -> None:
        self._root, self._old, self._wanted, self._names, self._settings = root, old, wanted, names, settings
        self._loaded: list[Datapath] = []
        self._made: dict[str, int] = {}
        self.flows = 0

    def run(self, artifact: Callable[[], Artifact]) -> None:
        """Do it."""
        self._check_fit()
        new = self._create()
        self._copy_entries(new)
        movers = self._movers(new) if FLOW_MAPS & set(self._names) else []
        for mover in movers:
            mover.copy()
        if attach.attached(self._root):
            self._change_under_traffic(artifact(), new, movers)
        else:
            self._follow(movers)
            self._commit()
        self.flows = sum(mover.moved + mover.spilled for mover in movers)
        lost = sum(mover.lost for mover in movers)
        if lost:
            log.warning("connections whose SNAT ports collide in the smaller table were lost", extra={"flows": lost})

    def close(self) -> None:
        """Give descriptors back; the pins keep what is needed."""
        for item in self._loaded:
            item.close()
        for fd in self._made.values():
            os.close(fd)

    def _check_fit(self) -> None:
        """Refuse before anything is made."""
        limit = self._wanted.backends
        if limit >= self._old.sizes.backends:
            return
        for name in ("lb4_backend", "lb6_backend"):
            highest = max((int.from_bytes(key, "little") for key, _ in self._old.items(name)), default=0)
            if highest >= limit:
                raise ConfigError(
                    f"--max-backends {limit}: backend id {highest} is in use; nothing was changed; give more, or run"
                    " `lbagent cleanup` first (established connections are lost)"
                )

    def _create(self) -> KernelMaps:
        """Make and pin the new maps beside the old ones."""
        stage = self._root / STAGE
        stage.mkdir(mode=0o700)
        specs = pins.all_specs(self._wanted)
        for name in self._names:
            self._made[name] = pins.create_map(specs[name])
            with pins.kernel_errors("pin", name):
                bpfsys.obj_pin(self._made[name], str(stage / name))
        return KernelMaps(self._old.bpffs, self._wanted, self._old.fds | self._made)

    def _copy_entries(self, new: KernelMaps) -> None:
        for name in self._names:
            if name not in NOT_COPIED:
                _copy(self._old, new, self._old.specs[name])

    def _movers(self, new: KernelMaps) -> list[Mover]:
        seeds = generation.pinned_seeds(self._root)
        if seeds is None:
            return []  # no program ever ran: no flows
        now = clock.jiffies() >> tick_shift(clock.hz()) & 0xFFFF
        return [Mover(family, self._old, new, Hash(seeds.seed0, seeds.seed1), now) for family in ("4", "6")]

    def _change_under_traffic(self, artifact: Artifact, new: KernelMaps, movers: Sequence[Mover]) -> None:
        hold = replace(self._settings, hold_new=True)
        for maps, settings in ((self._old, hold), (new, hold), (new, self._settings)):
            self._loaded.append(datapath.load(self._root, artifact, maps.fds, maps.sizes, settings))
        quiet, turned, free = self._loaded
        began = time.monotonic()
        quiet.put_in_force()
        self._follow(movers)
        self._commit()
        turned.put_in_force()
        free.put_in_force()
        log.info("new flows were held back", extra={"ms": round(1000 * (time.monotonic() - began))})

    @staticmethod
    def _follow(movers: Sequence[Mover]) -> None:
        for mover in movers:
            mover.follow()

    def _commit(self) -> None:
        (self._root / STAGE / MARK).mkdir()
        _exchange(self._root)


def _copy(old: KernelMaps, new: KernelMaps, spec: MapSpec) -> None:
    """Copy the entries of one map; of an array as many as fit (ids beyond were refused before)."""
    if spec.type is MapType.ARRAY:
        length = min(spec.value_size, new.specs[spec.name].value_size)
        for offset in range(0, length, COPY_BYTES):
            count = min(COPY_BYTES, length - offset)
            with old.window(spec.name, offset, count) as source, new.window(spec.name, offset, count) as target:
                target[:] = source
    elif spec.type is MapType.PERCPU_ARRAY:
        room = new.specs[spec.name].max_entries
        for key, value in old.items(spec.name):
            if int.from_bytes(key, "little") < room:
                with pins.kernel_errors("update", spec.name):
                    bpfsys.map_update(new.fds[spec.name], key, value)
    else:
        new.put_many(spec.name, old.items(spec.name))
