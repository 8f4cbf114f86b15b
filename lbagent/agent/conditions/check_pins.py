"""Whether maps and programs are still pinned, and whether the pins outlive the agent's mount namespace.

Without their pins they end with the agent. A missing pin is made again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lbagent.agent.conditions.condition import Condition, ConditionName
from lbagent.bpf.load.generation import pinned_programs
from lbagent.errors import KernelError, LbError
from lbagent.kernel.bpffs import is_bpffs, open_pin, pin
from lbagent.kernel.bpfsys import same_object
from lbagent.kernel.mounts import PRIVATE_ADVICE, is_private
from lbagent.maps.pins import ensure_pin_dir, pin_dir
from lbagent.targets.bpf.lock import AgentLock

if TYPE_CHECKING:
    from lbagent.agent.components import AgentComponents


def check_mounts(components: AgentComponents) -> Iterator[Condition]:
    """Say so when the bpf file system is seen in this mount namespace alone."""
    root = pin_dir(components.config.bpffs)
    if is_private(root, mounted_here=components.mounted_bpffs):
        text = f"the bpf file system of {root} is in a private mount namespace: programs and maps end with the last process in it"
        yield Condition(ConditionName.PRIVATE_MOUNT, str(root), text, PRIVATE_ADVICE)


async def check_pins(components: AgentComponents) -> Iterable[Condition]:
    """Look for every pin the agent made, and pin again what it still holds open."""
    keeper, datapath = components.devices, components.datapath
    if keeper is None or datapath is None:
        return ()
    async with keeper.busy:  # a change of programs or sizes moves pins
        return await asyncio.to_thread(list, _pins(pin_dir(components.config.bpffs), components))


def _pins(root: Path, components: AgentComponents) -> Iterator[Condition]:
    if are_away(root, components):
        what = f"{root} is no longer on the bpf file system it was on"
        try:
            pin_again(root, components)
        except (LbError, OSError) as error:
            text = f"{what}: programs and maps end with the agent, no command finds them, and pinning them again failed: {error}"
            remedy = "restart the agent: it mounts one there and begins anew; connections through it are lost"
            yield Condition(ConditionName.BPFFS_UNMOUNTED, str(root), text, remedy)
        else:
            text = f"{what}; the agent mounted one and pinned its maps, programs and links there again"
            yield Condition(ConditionName.BPFFS_UNMOUNTED, str(root), text, mended=True)
        return
    for path, fd in _wanted(root, components):
        what = f"the pin {path} was removed"
        if path.exists():
            if _holds(path, fd):
                continue
            text = f"{path} holds something else than what the agent pinned there"
            remedy = (
                "remove that pin: the agent makes its own again; until then commands and a restart read the wrong one"
            )
            yield Condition(ConditionName.PIN_MISSING, str(path), text, remedy)
            continue
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            pin(fd, path)
        except (KernelError, OSError) as error:
            text = f"{what}; it could not be made again: {error}"
            yield Condition(ConditionName.PIN_MISSING, str(path), text, "restart the agent before it is needed")
        else:
            yield Condition(ConditionName.PIN_MISSING, str(path), f"{what}; it was made again", mended=True)


def are_away(root: Path, components: AgentComponents) -> bool:
    """Whether the file system that holds the pins is not at `root` any more: unmounted, or another one lies over it."""
    if components.lock is None:
        return False
    try:
        return not is_bpffs(root) or root.stat().st_dev != components.lock.opened.stat().st_dev
    except OSError:
        return True


def pin_again(root: Path, components: AgentComponents) -> None:
    """Pin what was pinned in a file system that is away in the one at `root`, which is mounted if need be. Raises LbError, OSError.

    The one that is away lives while its folder is locked, with the links that are pinned in it and nowhere else.
    """
    assert components.lock is not None
    assert components.datapath is not None
    components.mounted_bpffs |= ensure_pin_dir(components.config.bpffs)
    lock = AgentLock(root)
    lock.take()
    try:
        for path, fd in _wanted(root, components):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _pin_once(fd, path)
        (root / "link").mkdir(mode=0o700, exist_ok=True)
        links = components.lock.opened / "link"
        for item in sorted(links.iterdir()) if links.is_dir() else ():  # removed as a whole: check_links.py makes them
            _take_over_link(item, root / "link" / item.name)
        (root / "build" / components.datapath.hooked.key).mkdir(mode=0o700, parents=True, exist_ok=True)
    except BaseException:
        lock.release()
        raise
    components.lock.become(lock)


def _take_over_link(old: Path, new: Path) -> None:
    if old.is_dir():  # says which device has filters (bpf/load/clsact.py)
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


def _wanted(root: Path, components: AgentComponents) -> Iterator[tuple[Path, int]]:
    """Yield where each object is pinned, and a descriptor of it."""
    for name, fd in components.maps.fds.items():
        yield root / name, fd
    if components.datapath:
        generation = components.datapath.hooked.generation
        for name, fd in generation.maps.items():
            yield root / name, fd
        for name in pinned_programs(generation.programs):
            yield root / "prog" / name, generation.programs[name]


def _holds(path: Path, fd: int) -> bool:
    import os

    try:
        found = open_pin(path)
    except KernelError:
        return False
    try:
        return same_object(found, fd)
    finally:
        os.close(found)
