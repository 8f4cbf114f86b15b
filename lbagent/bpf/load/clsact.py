"""tc programs as clsact filters, for kernels without TCX (before Linux 6.6). The kernel keeps them by itself, without a pin.

Our filters have fixed names; a directory beside the pinned links (`DEVICE-filters`) marks each device that has some. It contains
empty directories: `index:IFINDEX`, which identifies a device that is renamed later, and `clsact` if this agent made the qdisc.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from typing import TYPE_CHECKING, Any

from lbagent.bpf.hooks import HOOKS, AttachPoint, AttachPointKind, Hook
from lbagent.errors import KernelError
from lbagent.iproute import NetlinkError
from lbagent.kernel.features import has_tcx

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lbagent.bpf.load.devices import Device
    from lbagent.iproute import IPRoute

FILTER_PREFIX = "lbagent_"  # names of our filters; `cleanup` finds them by it
MARK_SUFFIX = "-filters"
_INDEX_MARK = "index:"
_TCA_BPF_ID = 11  # of enum in linux/pkt_cls.h: pyroute2 has no name for it
_FILTER_PRIO = 1
_FILTER_HANDLE = 0x1B
_CLSACT_HOOKS = tuple(hook for hook in HOOKS if hook.clsact_parent)


def uses_filter(hook: Hook) -> bool:
    """Return whether programs of this hook are attached by filter here, because the kernel has no link for them."""
    return bool(hook.clsact_parent) and not has_tcx()


def set_filter(root: Path, netlink: IPRoute, name: str, device: Device, hook: Hook, prog_fd: int) -> None:
    """Add or atomically replace our filter; create the clsact qdisc if it is missing. Raises KernelError.

    `name` is the device's name for --device; it may have been renamed since.
    """
    mark = _mark(root, name)
    mark.mkdir(parents=True, exist_ok=True)
    _write_index(mark, device.ifindex)
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


def filter_programs(netlink: IPRoute, device: Device) -> list[int]:
    """Return the ids of the programs in filters of this agent, or of another one, on a device; none where the kernel has links."""
    if not any(map(uses_filter, _CLSACT_HOOKS)):
        return []
    return [ident for _, message in filters(netlink, device) if (ident := program_id(message))]


def program_id(message: Any) -> int:
    """Return the id of the program in one of `filters`, 0 if the kernel does not report it."""
    for name, nla in ((slot[0], slot.nla) for slot in message.get_attr("TCA_OPTIONS")["attrs"]):
        if name == "UNKNOWN":
            _, kind, ident = struct.unpack_from("=HHI", nla.data, nla.offset)
            if kind == _TCA_BPF_ID:
                return int(ident)
    return 0


def remove_filter(netlink: IPRoute, device: Device, hook: Hook, message: Any) -> None:
    """Remove one of `filters`."""
    netlink.tc(
        "del-filter", "bpf", index=device.ifindex, handle=message["handle"], parent=hook.clsact_parent,
        info=message["info"],
    )  # fmt: skip


def remove_unused_qdisc(root: Path, netlink: IPRoute, name: str, device: Device) -> None:
    """After our last filter: remove the mark of `name`, and the qdisc if this agent made it and it has no other filter."""
    mark = _mark(root, name)
    if not mark.is_dir() or filters(netlink, device):
        return
    in_use = any(list(netlink.get_filters(index=device.ifindex, parent=hook.clsact_parent)) for hook in _CLSACT_HOOKS)
    if (mark / "clsact").is_dir():
        if not in_use:
            with contextlib.suppress(NetlinkError):
                netlink.tc("del", "clsact", index=device.ifindex)
        (mark / "clsact").rmdir()
    _write_index(mark, 0)
    mark.rmdir()


def marked_devices(root: Path, present: Mapping[str, Device]) -> dict[str, Device]:
    """Return those of `present` that have the agent's filters according to this bpf file system, by their names there."""
    return {name: device for name, device in present.items() if _mark(root, name).is_dir()}


def marked_indexes(root: Path) -> dict[str, int]:
    """Return the interface indexes of all devices that got the agent's filters, by the names they had then."""
    marks = sorted((root / "link").glob(f"*{MARK_SUFFIX}")) if (root / "link").is_dir() else []
    out = {}
    for mark in marks:
        target = AttachPoint.from_pin_name(AttachPointKind.DEVICE, mark.name.removesuffix(MARK_SUFFIX))
        for item in mark.glob(f"{_INDEX_MARK}*"):
            out[target.name] = int(item.name.removeprefix(_INDEX_MARK))
    return out


def _write_index(mark: Path, ifindex: int) -> None:
    """Record the device of a mark; 0: none."""
    wanted = mark / f"{_INDEX_MARK}{ifindex}"
    for item in mark.glob(f"{_INDEX_MARK}*"):
        if item != wanted:
            item.rmdir()
    if ifindex:
        wanted.mkdir(exist_ok=True)


def _mark(root: Path, device: str) -> Path:
    return root / "link" / (AttachPoint(AttachPointKind.DEVICE, device).pin_name + MARK_SUFFIX)
