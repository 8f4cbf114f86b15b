"""Whether maps, programs and links are still pinned and attached, and whether the pins outlive the agent's mount namespace.

Without their pins they end with the agent. Missing pins are created again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lbagent.bpf.load import attach
from lbagent.bpf.load.generation import pinned_programs
from lbagent.errors import KernelError, LbError
from lbagent.kernel.bpffs import is_bpffs, open_pin, pin
from lbagent.kernel.bpfsys import same_object
from lbagent.kernel.mounts import PRIVATE_ADVICE
from lbagent.maps.pins import ensure_pin_dir
from lbagent.model.check import Check, Level, Result, When
from lbagent.targets.bpf.checks.node_context import NodeContext
from lbagent.targets.bpf.checks.offline_context import OfflineContext
from lbagent.targets.bpf.checks.running_context import PinnedParts, RunningContext


def private_mount(context: NodeContext) -> Iterator[Result]:
    """Check whether only this mount namespace has the bpf file system of the pins."""
    if context.has_private_pins:
        yield Result(str(context.pins), {"pins": context.pins})


def bpffs_missing(context: OfflineContext) -> Iterator[Result]:
    """Find a bpf file system before the start."""
    if not context.has_private_pins:
        level = Level.OK if context.has_bpffs else None
        yield Result(values={"bpffs": context.config.bpffs}, level=level)


async def bpffs_unmounted(context: RunningContext) -> Iterable[Result]:
    """Check whether the pins are still in place, and pin everything again if they are not."""
    plane = context.plane
    if plane.devices is None or plane.datapath is None:
        return ()
    async with plane.devices.busy:  # a change of programs or sizes moves pins
        return await asyncio.to_thread(list, _pinned_again(context.pins, plane))


def _pinned_again(root: Path, plane: PinnedParts) -> Iterator[Result]:
    if not are_away(root, plane):
        return
    try:
        pin_again(root, plane)
    except (LbError, OSError) as error:
        yield Result(str(root), {"pins": root, "error": error})
    else:
        text = f"{root} is no longer on the bpf file system it was on; the agent mounted one and pinned its maps, programs and"
        yield Result(str(root), text=f"{text} links there again", remedy="", mended=True)


def are_away(root: Path, plane: PinnedParts) -> bool:
    """Return whether the file system of the pins is no longer at `root`: unmounted, or another one is mounted over it."""
    try:
        return not is_bpffs(root) or root.stat().st_dev != plane.lock.opened.stat().st_dev
    except OSError:
        return True


def pin_again(root: Path, plane: PinnedParts) -> None:
    """Pin the objects of an unmounted file system in the one at `root`, which is mounted if needed. Raises LbError, OSError.

    The unmounted one exists while its folder is locked, with the links that are pinned only there.
    """
    assert plane.datapath is not None
    plane.mounted_bpffs |= ensure_pin_dir(plane.config.bpffs)
    with plane.lock.moving_to(root):
        for path, fd in _wanted(root, plane):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _pin_once(fd, path)
        (root / "link").mkdir(mode=0o700, exist_ok=True)
        links = plane.lock.opened / "link"
        for item in sorted(links.iterdir()) if links.is_dir() else ():  # removed as a whole: link_detached creates them
            _take_over_link(item, root / "link" / item.name)
        (root / "build" / plane.datapath.hooked.key).mkdir(mode=0o700, parents=True, exist_ok=True)


def _take_over_link(old: Path, new: Path) -> None:
    if old.is_dir():  # lists the devices with filters (bpf/load/clsact.py)
        for folder in (new, *(new / each.name for each in old.iterdir())):
            folder.mkdir(mode=0o700, exist_ok=True)
        return
    fd = open_pin(old)
    try:
        _pin_once(fd, new)
    finally:
        os.close(fd)


def _pin_once(fd: int, path: Path) -> None:
    if not path.exists():
        pin(fd, path)


def _wanted(root: Path, plane: PinnedParts) -> Iterator[tuple[Path, int]]:
    """Yield the pin of each object, and a descriptor of it."""
    for name, fd in plane.maps.fds.items():
        yield root / name, fd
    if plane.datapath:
        generation = plane.datapath.hooked.generation
        for name, fd in generation.maps.items():
            yield root / name, fd
        for name in pinned_programs(generation.programs):
            yield root / "prog" / name, generation.programs[name]


async def pin_missing(context: RunningContext) -> Iterable[Result]:
    """Check every pin of the agent, and restore those of objects that it still holds open."""
    plane = context.plane
    if plane.devices is None or plane.datapath is None:
        return ()
    async with plane.devices.busy:
        return await asyncio.to_thread(list, _missing_pins(context.pins, plane))


def _missing_pins(root: Path, plane: PinnedParts) -> Iterator[Result]:
    if are_away(root, plane):
        return  # bpffs_unmounted tells
    for path, fd in _wanted(root, plane):
        what = f"the pin {path} was removed"
        if path.exists():
            if not _holds(path, fd):
                text = f"{path} holds something else than what the agent pinned there"
                remedy = "remove that pin: the agent makes its own again; until then commands and a restart read the wrong one"
                yield Result(str(path), text=text, remedy=remedy)
            continue
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            pin(fd, path)
        except (KernelError, OSError) as error:
            yield Result(str(path), {"pin": path, "error": error})
        else:
            yield Result(str(path), text=f"{what}; it was made again", remedy="", mended=True)


def _holds(path: Path, fd: int) -> bool:
    try:
        found = open_pin(path)
    except KernelError:
        return False
    try:
        return same_object(found, fd)
    finally:
        os.close(found)


async def link_detached(context: RunningContext) -> Iterable[Result]:
    """Check every link and filter, and attach missing ones again."""
    keeper, datapath = context.plane.devices, context.plane.datapath
    if keeper is None or datapath is None:
        return ()
    if are_away(datapath.root, context.plane):
        return ()  # bpffs_unmounted reports it; a link made now could not be pinned
    async with keeper.busy:  # no change of devices or programs meanwhile
        lost = await asyncio.to_thread(attach.lost, datapath.root, keeper.attached, datapath.hooked.programs)
    if not lost:
        keeper.lost = frozenset()
        return ()
    try:
        await keeper.attach_again()
        keeper.lost, failed = frozenset(), ""
    except LbError as error:
        keeper.lost, failed = frozenset(item for item, _ in lost), str(error)
    return [
        _detached(str(item), f"{item.hook} on {item.target.kind} {item.target.name}: {why}", failed)
        for item, why in lost
    ]


def _detached(subject: str, what: str, failed: str) -> Result:
    if failed:
        return Result(subject, {"what": what, "error": failed})
    return Result(subject, text=f"{what}; it was attached again", remedy="", mended=True)


CHECKS = (
    Check(
        "private-mount",
        "whether the pins are on a mount of this mount namespace alone",
        private_mount,
        "{pins}: this mount namespace is private, so programs and maps end with the last process in it",
        PRIVATE_ADVICE,
        when=When.BOTH,
    ),
    Check(
        "bpffs-missing",
        "the bpf file system of the pins, before the start",
        bpffs_missing,
        "no bpf file system at {bpffs}; the agent mounts one",
        good="{bpffs} is on a bpf file system",
        when=When.OFFLINE,
        level=Level.NOTE,
    ),
    Check(
        "bpffs-unmounted",
        "whether the bpf file system of the pins is still there",
        bpffs_unmounted,
        "{pins} is no longer on the bpf file system it was on: programs and maps end with the agent, no command finds them, and"
        " pinning them again failed: {error}",
        "restart the agent: it mounts one there and starts from nothing; connections through it are lost",
    ),
    Check(
        "pin-missing",
        "whether each map and program is pinned",
        pin_missing,
        "the pin {pin} was removed; it could not be made again: {error}",
        "restart the agent before it is needed",
    ),
    Check(
        "link-detached",
        "whether programs are attached where the agent attached them",
        link_detached,
        "{what}; it could not be attached again: {error}",
        "no packet is balanced there; see `lbagent doctor`; the agent retries every few seconds",
    ),
)
