"""Programs onto devices: which hooks a device gets, links or clsact filters, and taking all of it away again.

XDP goes on by pinned link. tc goes on by TCX link, and below Linux 6.6 by a clsact filter with a name of ours, which the
kernel keeps by itself. Both tc directions are needed for the replies of local backends (docs/datapath.md).
The functions block on netlink: from asyncio, call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lbagent.bpf.load.links import Hook, attach_link, detach_link, linked_program, pinned_links
from lbagent.errors import Conflict, KernelError, NotFound, Unsupported
from lbagent.kernel import bpf_prog
from lbagent.kernel.features import has_tcx

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

FILTER_PREFIX = "lbagent_"  # names of our clsact filters; `cleanup` finds them by it
_FILTER_PRIO = 1
_FILTER_HANDLE = 0x1B
_PARENTS = {Hook.TC_INGRESS: 0xFFFFFFF2, Hook.TC_EGRESS: 0xFFFFFFF3}  # ffff:fff2, ffff:fff3
_IFF_LOOPBACK = 8


@dataclass(frozen=True)
class Device:
    """What the kernel says about a device. `kind` is '' for a NIC, else veth, bridge, vlan, ..."""

    name: str
    ifindex: int
    kind: str
    loopback: bool
    mtu: int
    xdp_prog_id: int
    xdp_mode: str  # '', 'xdp' (native), 'xdpgeneric', 'xdpoffload', 'xdpmulti'

    @property
    def virtual(self) -> bool:
        """Whether XDP there would cost the stack its offloads (veth, bridge, vlan, ...)."""
        return bool(self.kind) or self.loopback


@dataclass(frozen=True)
class Attachment:
    """One hook of one device, as wanted or as found."""

    device: str
    hook: Hook
    pod: bool = False


def devices() -> dict[str, Device]:
    """Return every device of this network namespace by name."""
    with IPRoute() as netlink:
        return _devices(netlink)


def _devices(netlink: IPRoute) -> dict[str, Device]:
    return {device.name: device for device in map(_device, netlink.get_links())}


def _device(message: Any) -> Device:
    info, xdp = message.get_attr("IFLA_LINKINFO"), message.get_attr("IFLA_XDP")
    return Device(
        name=message.get_attr("IFLA_IFNAME"),
        ifindex=message["index"],
        kind=(info and info.get_attr("IFLA_INFO_KIND")) or "",
        loopback=bool(message["flags"] & _IFF_LOOPBACK),
        mtu=message.get_attr("IFLA_MTU") or 0,
        xdp_prog_id=(xdp and xdp.get_attr("IFLA_XDP_PROG_ID")) or 0,
        xdp_mode=(xdp and xdp.get_attr("IFLA_XDP_ATTACHED")) or "",
    )


def wanted(
    mode: str, names: Sequence[str], pod_patterns: Sequence[str], present: Mapping[str, Device]
) -> list[Attachment]:
    """Return the hooks for `--attach MODE`, `--device` names and `--pod-device` patterns.

    auto: XDP native on NICs, tc on virtual devices. Raises NotFound for a `--device` that is not there; a pattern may
    match nothing yet.
    """
    out: list[Attachment] = []
    for name in dict.fromkeys(names):
        if name not in present:
            others = ", ".join(sorted(item for item in present if not present[item].loopback)) or "none"
            raise NotFound(
                f"device {name} does not exist in this network namespace; nothing was attached; there are: {others}"
            )
        out += [Attachment(name, _ingress(mode, present[name])), Attachment(name, Hook.TC_EGRESS)]
    for name in sorted(present):
        if name not in names and any(fnmatchcase(name, pattern) for pattern in pod_patterns):
            out += [Attachment(name, Hook.TC_INGRESS, pod=True), Attachment(name, Hook.TC_EGRESS, pod=True)]
    return out


def _ingress(mode: str, device: Device) -> Hook:
    if mode == "auto":
        return Hook.TC_INGRESS if device.virtual else Hook.XDP
    return {"xdp": Hook.XDP, "xdp-generic": Hook.XDP_GENERIC, "tc": Hook.TC_INGRESS}[mode]


def attach(
    root: Path, hooks: Iterable[Attachment], programs: Mapping[str, int], *, fall_back: bool
) -> list[Attachment]:
    """Attach or update every hook; return what is attached now (with `fall_back`, tc where a NIC has no native XDP).

    Hooks that are attached and no longer wanted go last. Raises KernelError, Conflict (somebody else's XDP), NotFound,
    Unsupported; what was attached before the error stays.
    """
    done: list[Attachment] = []
    with IPRoute() as netlink:
        present = _devices(netlink)
        for item in hooks:
            device = present.get(item.device)
            try:
                if device is None:
                    raise NotFound(f"device {item.device} has gone; its programs went with it")
                hook = _attach_one(root, netlink, device, item.hook, programs, fall_back=fall_back)
            except NotFound:
                if not item.pod:
                    raise
                continue  # pods come and go while we work
            done.append(Attachment(item.device, hook, item.pod))
        _detach_others(root, netlink, {(item.device, item.hook) for item in done}, _marked(root, present))
    return done


def _attach_one(
    root: Path, netlink: IPRoute, device: Device, hook: Hook, programs: Mapping[str, int], *, fall_back: bool
) -> Hook:
    """Attach to one device; return the hook it became."""
    if hook in _PARENTS and not has_tcx():
        _set_filter(root, netlink, device, hook, programs[hook.program])
        return hook
    if hook.program == "xdp" and _xdp_mode_differs(root, device, hook):
        detach_link(root, device.name, hook)  # native and generic cannot replace one another
    try:
        attach_link(root, device.name, device.ifindex, hook, programs[hook.program])
    except KernelError as error:
        reason = _explain(error, device, hook)
        if fall_back and hook is Hook.XDP and isinstance(reason, Unsupported):
            return _attach_one(root, netlink, device, Hook.TC_INGRESS, programs, fall_back=False)
        raise reason from error
    return hook


def _xdp_mode_differs(root: Path, device: Device, hook: Hook) -> bool:
    native = device.xdp_mode == "xdp"
    return bool(device.xdp_prog_id and linked_program(root, device.name, hook)) and native != (hook is Hook.XDP)


def _explain(error: KernelError, device: Device, hook: Hook) -> Exception:
    """Return what an operator can do about a refused attachment."""
    name = device.name
    if hook.program == "xdp" and error.errno in (errno.EBUSY, errno.EEXIST):
        owner = _program_name(device.xdp_prog_id)
        return Conflict(
            f"device {name} already runs the XDP program {owner} of somebody else; it was left alone; "
            f"take it off (ip link set dev {name} xdp off) or use --attach tc"
        )
    if hook is Hook.XDP and error.errno in (errno.ERANGE, errno.EOPNOTSUPP, errno.EINVAL):
        advice = (
            f"MTU {device.mtu} may be too large for its driver (3,498 is a usual limit); " if device.mtu > 3498 else ""
        )
        return Unsupported(f"native XDP on device {name}", advice=advice + "use --attach tc or --attach xdp-generic")
    if error.errno == errno.ENODEV:
        return NotFound(f"device {name} has gone")
    return KernelError(f"attach {hook.program}", error.errno, f"device {name}")


def _program_name(ident: int) -> str:
    try:
        fd = bpf_prog.prog_fd_by_id(ident)
    except OSError:
        return f"with id {ident}"
    try:
        return f"{bpf_prog.prog_info(fd).name or '(no name)'} (id {ident})"
    finally:
        os.close(fd)


# --- clsact, for kernels without TCX ---


def _mark(root: Path, device: str) -> Path:
    """Return the directory beside the links that says: filters of ours are on this device. In it, `clsact`: made by us."""
    return root / "link" / f"{device.replace('.', ':')}-filters"


def _marked(root: Path, present: Mapping[str, Device]) -> list[Device]:
    """Return the devices that carry filters of ours, as far as this bpf file system remembers."""
    return [device for device in present.values() if _mark(root, device.name).is_dir()]


def _set_filter(root: Path, netlink: IPRoute, device: Device, hook: Hook, prog_fd: int) -> None:
    """Add or atomically replace our filter; the clsact qdisc is made when it is missing."""
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
            name=FILTER_PREFIX + hook.program, parent=_PARENTS[hook], prio=_FILTER_PRIO,
            classid=1, direct_action=True,
        )  # fmt: skip
    except NetlinkError as error:
        raise KernelError(f"attach {hook.program}", error.code, f"device {device.name}") from error


def _filters(netlink: IPRoute, device: Device) -> list[tuple[Hook, Any]]:
    """Return our filters on a device."""
    out = []
    for hook, parent in _PARENTS.items():
        try:
            found = list(netlink.get_filters(index=device.ifindex, parent=parent))
        except NetlinkError:  # no clsact there
            continue
        for message in found:
            options = message.get_attr("TCA_OPTIONS")
            name = options.get_attr("TCA_BPF_NAME") if hasattr(options, "get_attr") else None
            if name == FILTER_PREFIX + hook.program:
                out.append((hook, message))
    return out


def _remove_filter(netlink: IPRoute, device: Device, hook: Hook, message: Any) -> None:
    netlink.tc(
        "del-filter", "bpf", index=device.ifindex, handle=message["handle"], parent=_PARENTS[hook], info=message["info"]
    )  # fmt: skip


def _forget_filters(netlink: IPRoute, root: Path, device: Device) -> None:
    """After our last filter: take the mark away, and the qdisc if we made it and nobody else has a filter on it."""
    mark = _mark(root, device.name)
    if not mark.is_dir() or _filters(netlink, device):
        return
    others = any(list(netlink.get_filters(index=device.ifindex, parent=parent)) for parent in _PARENTS.values())
    if (mark / "clsact").is_dir():
        if not others:
            with contextlib.suppress(NetlinkError):
                netlink.tc("del", "clsact", index=device.ifindex)
        (mark / "clsact").rmdir()
    mark.rmdir()


# --- what is attached, and taking it away ---


def attached(root: Path) -> list[Attachment]:
    """Return every hook attached under `root` in this network namespace, by link or filter, also without an agent."""
    found = [Attachment(device, hook) for device, hook in pinned_links(root) if linked_program(root, device, hook)]
    with IPRoute() as netlink:
        for device in _marked(root, _devices(netlink)):
            found += [Attachment(device.name, hook) for hook, _ in _filters(netlink, device)]
    return found


def detach_all(root: Path) -> list[Attachment]:
    """Detach everything of ours: links under `root`, and clsact filters on any device by their names; return what went."""
    with IPRoute() as netlink:
        return _detach_others(root, netlink, set(), list(_devices(netlink).values()))


def _detach_others(
    root: Path, netlink: IPRoute, keep: set[tuple[str, Hook]], filtered: Iterable[Device]
) -> list[Attachment]:
    """Detach what is not in `keep`: pinned links, and filters on the devices `filtered`."""
    kept_pins = {(device, hook.program) for device, hook in keep}
    gone: list[Attachment] = []
    for name, hook in pinned_links(root):
        if (name, hook.program) not in kept_pins:
            detach_link(root, name, hook)
            gone.append(Attachment(name, hook))
    for device in filtered:
        for hook, message in _filters(netlink, device):
            if (device.name, hook) not in keep or has_tcx():
                _remove_filter(netlink, device, hook, message)
                gone.append(Attachment(device.name, hook))
        _forget_filters(netlink, root, device)
    return gone
