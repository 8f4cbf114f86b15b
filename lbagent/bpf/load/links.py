"""Pinned bpf_links: XDP on a device, TCX (Linux 6.6) on its two directions. Interface indexes are the calling thread's netns.

A link pinned at ROOT/link/DEVICE-HOOK outlives the agent; updating it is atomic, so no packet meets a device without a
program. bpffs allows no dot in a name: `eth0.100` is pinned as `eth0:100` (no device name holds a colon).
"""

from __future__ import annotations

import errno
import os
from enum import StrEnum
from typing import TYPE_CHECKING

from lbagent.errors import KernelError, LbError
from lbagent.kernel import bpf_link, bpf_prog, bpffs
from lbagent.kernel.bpf_link import AttachType
from lbagent.kernel.kernel_error import kernel_errors

if TYPE_CHECKING:
    from pathlib import Path

_XDP_GENERIC, _XDP_NATIVE = 2, 4  # XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE


class Hook(StrEnum):
    """Where a program sits on a device."""

    XDP = "xdp"
    XDP_GENERIC = "xdp-generic"
    TC_INGRESS = "tc_ingress"
    TC_EGRESS = "tc_egress"

    @property
    def program(self) -> str:
        """Name of the entry program."""
        return "xdp" if self in (Hook.XDP, Hook.XDP_GENERIC) else self.value


_ATTACH = {
    Hook.XDP: (AttachType.XDP, _XDP_NATIVE),
    Hook.XDP_GENERIC: (AttachType.XDP, _XDP_GENERIC),
    Hook.TC_INGRESS: (AttachType.TCX_INGRESS, 0),
    Hook.TC_EGRESS: (AttachType.TCX_EGRESS, 0),
}


def pin_path(root: Path, device: str, hook: Hook) -> Path:
    """Return where the link of a device is pinned; both XDP modes share one name, as they exclude one another."""
    return root / "link" / f"{device.replace('.', ':')}-{hook.program}"


def parse_pin(name: str) -> tuple[str, Hook]:
    """Return device and hook of a pin's file name."""
    device, _, hook = name.rpartition("-")
    return device.replace(":", "."), Hook(hook)


def attach_link(root: Path, device: str, ifindex: int, hook: Hook, prog_fd: int) -> None:
    """Attach by a link and pin it, or update the one that is pinned there. Raises KernelError with the kernel's errno.

    A pinned link whose device has gone (or came back with another index) is replaced.
    """
    path = pin_path(root, device, hook)
    if path.exists():
        if _update_pinned(path, ifindex, prog_fd):
            return
        path.unlink()
    attach, flags = _ATTACH[hook]
    with kernel_errors("attach", f"interface {ifindex}"):
        fd = bpf_link.link_create(prog_fd, ifindex, attach, flags)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        bpffs.pin(fd, path)
    finally:
        os.close(fd)


def _update_pinned(path: Path, ifindex: int, prog_fd: int) -> bool:
    """Return False when the pinned link is of no use any more."""
    fd = bpffs.open_pin(path)
    try:
        with kernel_errors("replace the program", f"link {path.name}"):
            info = bpf_link.link_info(fd)
            if info.ifindex != ifindex:
                return False
            if info.prog_id != bpf_prog.prog_info(prog_fd).id:
                bpf_link.link_update(fd, prog_fd)
    finally:
        os.close(fd)
    return True


def linked_program(root: Path, device: str, hook: Hook) -> int:
    """Return the id of the program in a pinned link; 0 if there is no link or its device is gone."""
    try:
        fd = bpffs.open_pin(pin_path(root, device, hook))
    except LbError:
        return 0
    try:
        with kernel_errors("read information", f"link of {device}"):
            info = bpf_link.link_info(fd)
    finally:
        os.close(fd)
    return info.prog_id if info.ifindex else 0


def detach_link(root: Path, device: str, hook: Hook) -> bool:
    """Detach at once and take the pin away; return whether there was one."""
    path = pin_path(root, device, hook)
    if not path.exists():
        return False
    fd = bpffs.open_pin(path)
    try:
        with kernel_errors("detach", f"link {path.name}"):
            bpf_link.link_detach(fd)
    except KernelError as error:
        if error.errno not in (errno.ENOLINK, errno.EINVAL, errno.ENODEV):  # the device went before us
            raise
    finally:
        os.close(fd)
    path.unlink()
    return True


def pinned_links(root: Path) -> list[tuple[str, Hook]]:
    """Return (device, hook) of every pinned link, by name."""
    folder = root / "link"
    return [parse_pin(item.name) for item in sorted(folder.iterdir()) if not item.is_dir()] if folder.is_dir() else []
