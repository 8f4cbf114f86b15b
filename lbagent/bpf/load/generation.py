"""Pins of the generation in force, and the change to the next one without packet loss.

Under ROOT (`BPFFS/v1`): `prog/NAME`, the maps of a generation (GENERATION_MAPS), and `build/KEY`, an empty directory whose name
identifies what is loaded. A new generation is first pinned completely under `next/`: a tail call array loses its entries with its
last pin or descriptor, so it must not depend on this process. Then the links are updated one by one, and the pins are renamed
over the old ones. The old arrays are removed only after a grace period of the kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.bpf.load.loader import Generation, call_slots, is_tail_called
from lbagent.bpf.load.program_settings import Seeds, extra_snat_of, reply_ports_of, snat_ports_of
from lbagent.errors import KernelError
from lbagent.kernel import bpf_map, bpffs
from lbagent.kernel.bpf_prog import grace_period
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps.lbmaps import GENERATION_MAPS
from lbagent.model.extra_snat_sources import ExtraSnatSources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lbagent.bpf.compiler.artifact import Artifact, Program

_NEXT = "next"
_LOOK_UP = re.compile(r"call_\w+_(reply|icmp)[46]")


def generation_key(artifact: Artifact, shared_maps: Mapping[str, int], config: bytes) -> str:
    """Return the key of what would be loaded: equal keys mean the same programs on the same maps."""
    digest = hashlib.sha256(artifact.source_hash.encode() + artifact.bcc.encode() + config)
    with kernel_errors("read information", "the shared maps"):
        for name in sorted(shared_maps):
            digest.update(f"{name}={bpf_map.map_info(shared_maps[name]).id};".encode())
    return digest.hexdigest()[:32]


def pinned_programs(names: Mapping[str, object]) -> list[str]:
    """Return the programs that get a pin: all except tail-called ones, which their array holds."""
    return [name for name in names if not is_tail_called(name)]


def pinned_seeds(root: Path) -> Seeds | None:
    """Return the seeds of the flow tables under `root`; None if no program was ever loaded there."""
    record = _pinned_config(root)
    return Seeds.from_record(record) if record else None


def pinned_extra_snat(root: Path) -> ExtraSnatSources:
    """Return the extra SNAT addresses, with their numbers, that the programs under `root` use. Raises KernelError."""
    record = _pinned_config(root)
    return extra_snat_of(record) if record else ExtraSnatSources()


def pinned_snat_ports(root: Path) -> tuple[int, int] | None:
    """Return the first and the last SNAT port that the programs under `root` use; None if none was ever loaded there."""
    record = _pinned_config(root)
    return snat_ports_of(record) if record else None


def pinned_reply_ports(root: Path) -> tuple[int, int] | None:
    """Return the first and the last port at which the programs under `root` recognise replies; None as above."""
    record = _pinned_config(root)
    return reply_ports_of(record) if record else None


def _pinned_config(root: Path) -> bytes | None:
    with _opened(root / "lb_config") as fd:
        if fd is None:
            return None
        with kernel_errors("read", "lb_config"):
            return bpf_map.map_lookup(fd, bytes(4), bpf_map.map_info(fd).value_size)


def reuse_pinned(root: Path, key: str, artifact: Artifact) -> Generation | None:
    """Return the pinned generation, with its programs, if it is exactly `key`; else None. Loads nothing."""
    if not (root / "build" / key).is_dir() or (root / _NEXT).exists():
        return None
    found = Generation()
    try:
        for name in pinned_programs(artifact.programs):
            if (root / "prog" / name).exists():
                found.programs[name] = bpffs.open_pin(root / "prog" / name)
        for name in GENERATION_MAPS:
            found.maps[name] = bpffs.open_pin(root / name)
    except KernelError:
        found.close()
        return None
    return found


def is_in_force(root: Path, artifact: Artifact, shared_maps: Mapping[str, int]) -> bool:
    """Return whether the pinned programs were loaded from this artifact against these maps, with any settings."""
    record = _pinned_config(root)
    return record is not None and (root / "build" / generation_key(artifact, shared_maps, record)).is_dir()


def install(root: Path, key: str, new: Generation, swap: Callable[[Generation], None]) -> None:
    """Make `new` the generation in force: pin it, let `swap` update every link, then move the pins.

    If `swap` raises, the pins of the old generation stay, and so do both sets of tail call arrays: links that are already updated
    continue to work. The next install starts again.
    """
    stage = root / _NEXT / f"{key}-{time.time_ns()}"  # never over an interrupted stage: links may use its arrays
    (stage / "prog").mkdir(parents=True)
    for name in GENERATION_MAPS:
        bpffs.pin(new.maps[name], stage / name)
    for name in pinned_programs(new.programs):
        bpffs.pin(new.programs[name], stage / "prog" / name)
    swap(new)
    old_maps = _keep_open(root)
    try:
        _move_pins(root, stage, key)
        grace_period()  # packets that entered the old programs have left them
    finally:
        for fd in old_maps:
            os.close(fd)
    _remove_tree(root / _NEXT)


def lead_over(root: Path, programs: Mapping[str, Program], loaded: Mapping[str, int]) -> None:
    """Put the tail-called `programs` that are `loaded` into the arrays under `root`, before their entry programs are on any hook.

    Hooks are updated one by one. If the next generation makes flows in a table that the one in force does not search
    (docs/datapath.md, "Resizing"), a flow that begins at a device with the next one would lose replies at a device without it.
    All devices share the array: slots of programs that only look up flows come first, then those that make them. Both generations
    have the same source, so the scratch record has the same layout. May be repeated. Raises KernelError.
    """
    slots = {place: name for place, name in call_slots(programs).items() if name in loaded}
    for looks_up in (True, False):
        for (calls, slot), name in slots.items():
            if bool(_LOOK_UP.fullmatch(name)) == looks_up:
                _fill(root / calls, slot, loaded[name])
        grace_period()  # no program that was entered before still runs


def _fill(pin: Path, slot: int, program: int) -> None:
    array = bpffs.open_pin(pin)
    try:
        with kernel_errors(f"fill slot {slot}", pin.name):
            bpf_map.map_update(array, slot.to_bytes(4, "little"), program.to_bytes(4, "little"))
    finally:
        os.close(array)


def add_pins(root: Path, made: Generation, names: Iterable[str]) -> None:
    """Pin programs that were loaded into the generation in force later than the others. Raises KernelError."""
    (root / "prog").mkdir(exist_ok=True)
    for name in names:
        if not is_tail_called(name):
            bpffs.pin(made.programs[name], root / "prog" / name)


def _keep_open(root: Path) -> list[int]:
    """Keep the old arrays open: the rename drops their pins before the grace period."""
    out = []
    for name in GENERATION_MAPS:
        with contextlib.suppress(KernelError):
            out.append(bpffs.open_pin(root / name))
    return out


def _move_pins(root: Path, stage: Path, key: str) -> None:
    (root / "prog").mkdir(exist_ok=True)
    builds = root / "build"
    builds.mkdir(exist_ok=True)
    for old in builds.iterdir():
        old.rmdir()  # until the new mark is there, no agent reuses a half-moved set
    wanted = {pin.name for pin in (stage / "prog").iterdir()}
    for pin in list((stage / "prog").iterdir()):
        pin.rename(root / "prog" / pin.name)
    for name in GENERATION_MAPS:
        (stage / name).rename(root / name)
    for pin in list((root / "prog").iterdir()):
        if pin.name not in wanted:
            pin.unlink()
    (builds / key).mkdir()


def remove(root: Path) -> None:
    """Remove every pin of programs and of their own maps; the shared maps stay."""
    for folder in ("prog", "build", _NEXT):
        _remove_tree(root / folder)
    for name in GENERATION_MAPS:
        (root / name).unlink(missing_ok=True)


def _remove_tree(path: Path) -> None:
    if not path.is_dir():
        return
    for item in list(path.iterdir()):
        if item.is_dir():
            _remove_tree(item)
        else:
            item.unlink()
    path.rmdir()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        fd = bpffs.open_pin(path)
    except KernelError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
