"""Pinned bpf_links: one for each target and hook, at ROOT/link/TARGET-PROGRAM. Interface indexes are the calling thread's netns.

A pinned link outlives the agent; an update is atomic, so the device always has a program.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from lbagent.bpf.hooks import AttachPoint, AttachPointKind, Hook, link_pin, parse_link_pin
from lbagent.errors import KernelError, LbError
from lbagent.kernel import bpf_link, bpf_prog, bpffs
from lbagent.kernel.kernel_error import kernel_errors

if TYPE_CHECKING:
    from pathlib import Path


def pin_path(root: Path, target: AttachPoint, hook: Hook) -> Path:
    """Return the path at which the link of an attach point is pinned."""
    return root / "link" / link_pin(target, hook)


def attach_link(root: Path, target: AttachPoint, number: int, hook: Hook, prog_fd: int, *, target_id: int = 0) -> None:
    """Attach by a link and pin it, or update the pinned one. Raises KernelError with the kernel's errno.

    `number` is the interface index or the open cgroup, `target_id` the id that the kernel reports for a link to it (default: the
    same number). A pinned link is replaced if its target is gone (or came back with another id).
    """
    path = pin_path(root, target, hook)
    if path.exists():
        if _update_pinned(path, target_id or number, prog_fd):
            return
        path.unlink()
    with kernel_errors("attach", f"{target.kind} {target.name}"):
        fd = bpf_link.link_create(prog_fd, number, hook.attach_type, hook.link_flags)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        bpffs.pin(fd, path)
    finally:
        os.close(fd)


def _update_pinned(path: Path, target_id: int, prog_fd: int) -> bool:
    """Return False if the pinned link can no longer be used."""
    fd = bpffs.open_pin(path)
    try:
        with kernel_errors("replace the program", f"link {path.name}"):
            info = bpf_link.link_info(fd)
            if info.target_id != target_id:
                return False
            if info.prog_id != bpf_prog.prog_info(prog_fd).id:
                bpf_link.link_update(fd, prog_fd)
    finally:
        os.close(fd)
    return True


def linked_devices(root: Path) -> dict[str, int]:
    """Return the interface indexes of all devices with a pinned link, by the names they had when it was made."""
    indexes = {path.name: _target_id(path) for path in _pins(root / "link")}
    return {parse_link_pin(name)[0].name: index for name, index in indexes.items() if index and _is_of_device(name)}


def _pins(folder: Path) -> list[Path]:
    return [item for item in sorted(folder.iterdir()) if not item.is_dir()] if folder.is_dir() else []


def _is_of_device(pin: str) -> bool:
    return parse_link_pin(pin)[0].kind is AttachPointKind.DEVICE


def _target_id(path: Path) -> int:
    """Return the id of the target of a pinned link, 0 if it is gone."""
    fd = bpffs.open_pin(path)
    try:
        with kernel_errors("read information", f"link {path.name}"):
            return bpf_link.link_info(fd).target_id
    finally:
        os.close(fd)


def linked_program(root: Path, target: AttachPoint, hook: Hook) -> int:
    """Return the id of the program in a pinned link; 0 if there is no link or its target is gone."""
    try:
        fd = bpffs.open_pin(pin_path(root, target, hook))
    except LbError:
        return 0
    try:
        with kernel_errors("read information", f"link of {target.name}"):
            info = bpf_link.link_info(fd)
    finally:
        os.close(fd)
    return info.prog_id if info.target_id else 0


def link_fault(root: Path, target: AttachPoint, hook: Hook, target_id: int, prog_id: int) -> str:
    """Return why a pinned link does not run this program on this target; '' if it does. Raises KernelError."""
    path = pin_path(root, target, hook)
    if not path.exists():
        return "the pin of its link was removed"
    fd = bpffs.open_pin(path)
    try:
        with kernel_errors("read information", f"link {path.name}"):
            info = bpf_link.link_info(fd)
    finally:
        os.close(fd)
    if not info.target_id:
        return "its link was detached"
    if info.target_id != target_id:
        return f"its link belongs to a {target.kind} that is gone"
    return "" if info.prog_id == prog_id else "another program was put into its link"


def detach_link(root: Path, target: AttachPoint, hook: Hook) -> bool:
    """Detach at once and remove the pin; return whether there was one."""
    path = pin_path(root, target, hook)
    if not path.exists():
        return False
    fd = bpffs.open_pin(path)
    try:
        with kernel_errors("detach", f"link {path.name}"):
            bpf_link.link_detach(fd)
    except KernelError as error:
        if error.errno not in (errno.ENOLINK, errno.EINVAL, errno.ENODEV):  # the device was removed before
            raise
    finally:
        os.close(fd)
    path.unlink()
    return True


def pinned_links(root: Path) -> list[tuple[AttachPoint, Hook]]:
    """Return target and hook of every pinned link, by the names of the pins."""
    return [parse_link_pin(item.name) for item in _pins(root / "link")]
