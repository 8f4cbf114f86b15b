"""tc programs as clsact filters, for kernels without TCX (before Linux 6.6). The kernel keeps them by itself, without a pin.

Our filters are known by their names; an empty directory beside the pinned links (`DEVICE-filters`) says which devices have some,
and `clsact` in it that the qdisc was made by this agent. All functions take an open netlink socket of pyroute2.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Any

from pyroute2.netlink.exceptions import NetlinkError

from lbagent.bpf.hooks import HOOKS, AttachTarget, Hook, TargetKind
from lbagent.errors import KernelError
from lbagent.kernel.features import has_tcx

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyroute2 import IPRoute

    from lbagent.bpf.load.devices import Device

FILTER_PREFIX = "lbagent_"  # names of our filters; `cleanup` finds them by it
MARK_SUFFIX = "-filters"
_FILTER_PRIO = 1
_FILTER_HANDLE = 0x1B
_CLSACT_HOOKS = tuple(hook for hook in HOOKS if hook.clsact_parent)


def uses_filter(hook: Hook) -> bool:
    """Say whether programs of this hook are attached by filter here, because the kernel has no link for them."""
    return bool(hook.clsact_parent) and not has_tcx()


def set_filter(root: Path, netlink: IPRoute, device: Device, hook: Hook, prog_fd: int) -> None:
    """Add or atomically replace our filter; the clsact qdisc is made when it is missing. Raises KernelError."""
    mark = _mark(root, device.name)
    mark.mkdir(parents=True, exist_ok=True)
    try:
        netlink.tc("add", "clsact", index=device.ifindex)
        (mark / "clsact").mkdir(exist_ok=True)
    except NetlinkError as error:
        if error.code != errno.EEXIST:
            raise KernelError("add clsact", error.code, f"device {device.name}") from error
    try:
        netlink.tc(
            "replace-filter", "bpf", index=device.ifindex, handle=_FILTER_HANDLE, fd=prog_fd,
            name=FILTER_PREFIX + hook.program, parent=hook.clsact_parent, prio=_FILTER_PRIO,
            classid=1, direct_action=True,
        )  # fmt: skip
    except NetlinkError as error:
        raise KernelError(f"attach {hook.program}", error.code, f"device {device.name}") from error


def filters(netlink: IPRoute, device: Device) -> list[tuple[Hook, Any]]:
    """Return our filters on a device, each with the netlink message that describes it."""
    out = []
    for hook in _CLSACT_HOOKS:
        try:
            found = list(netlink.get_filters(index=device.ifindex, parent=hook.clsact_parent))
        except NetlinkError:  # no clsact there
            continue
        for message in found:
            options = message.get_attr("TCA_OPTIONS")
            name = options.get_attr("TCA_BPF_NAME") if hasattr(options, "get_attr") else None
            if name == FILTER_PREFIX + hook.program:
                out.append((hook, message))
    return out


def remove_filter(netlink: IPRoute, device: Device, hook: Hook, message: Any) -> None:
    """Take one of `filters` away."""
    netlink.tc(
        "del-filter", "bpf", index=device.ifindex, handle=message["handle"], parent=hook.clsact_parent,
        info=message["info"],
    )  # fmt: skip


def remove_unused_qdisc(root: Path, netlink: IPRoute, device: Device) -> None:
    """After our last filter: take the mark away, and the qdisc if this agent made it and it holds no other filter."""
    mark = _mark(root, device.name)
    if not mark.is_dir() or filters(netlink, device):
        return
    in_use = any(list(netlink.get_filters(index=device.ifindex, parent=hook.clsact_parent)) for hook in _CLSACT_HOOKS)
    if (mark / "clsact").is_dir():
        if not in_use:
            with contextlib.suppress(NetlinkError):
                netlink.tc("del", "clsact", index=device.ifindex)
        (mark / "clsact").rmdir()
    mark.rmdir()


def marked_devices(root: Path, present: Mapping[str, Device]) -> list[Device]:
    """Return the devices that carry filters of ours, as far as this bpf file system remembers."""
    return [device for device in present.values() if _mark(root, device.name).is_dir()]


def _mark(root: Path, device: str) -> Path:
    return root / "link" / (AttachTarget(TargetKind.DEVICE, device).pin_name + MARK_SUFFIX)
