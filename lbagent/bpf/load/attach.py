"""Selects hooks for targets, attaches all of them, and detaches everything again. bpf/hooks.py defines a hook.

XDP is attached by pinned link, tc by TCX link, or before Linux 6.6 by a clsact filter (clsact.py). Both tc directions are needed
for the replies of local backends (docs/datapath.md). A hook's companion is attached after it and detached after it: frames that
the hook leaves to its companion always find one, except at the moment of the first attachment. The functions block on netlink:
from asyncio, call them in a thread.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from lbagent.bpf.hooks import (
    INGRESS_MODES,
    SOCKET_HOOKS,
    TC_EGRESS,
    TC_INGRESS,
    XDP,
    AttachPoint,
    AttachPointKind,
    Hook,
    in_mode,
    link_pin,
)
from lbagent.bpf.load import clsact
from lbagent.bpf.load.cgroup_attach import CgroupAttacher
from lbagent.bpf.load.device_attach import DeviceAttacher
from lbagent.bpf.load.devices import list_devices, no_such_device
from lbagent.bpf.load.links import detach_link, link_fault, linked_devices, linked_program, pinned_links
from lbagent.bpf.load.other_agents import is_pinned_elsewhere
from lbagent.errors import NotFound
from lbagent.iproute import IPRoute
from lbagent.kernel import bpf_prog
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.kernel.mounts import cgroup_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from lbagent.bpf.load.devices import Device


@dataclass(frozen=True)
class Attachment:
    """One hook of one target, as wanted or as found."""

    target: AttachPoint
    hook: Hook
    optional: bool = False  # the target of a pattern: its removal at any time is no error

    @classmethod
    def on_device(cls, name: str, hook: Hook, *, optional: bool = False) -> Attachment:
        """Return the attachment of a hook to a network device."""
        return cls(AttachPoint(AttachPointKind.DEVICE, name), hook, optional)

    @classmethod
    def on_cgroup(cls, path: str, hook: Hook) -> Attachment:
        """Return the attachment of a hook to a cgroup."""
        return cls(AttachPoint(AttachPointKind.CGROUP, path), hook)

    def __str__(self) -> str:
        """Return target and hook as one word, for a log line."""
        return f"{self.target.name}-{self.hook}"


class Attacher(Protocol):
    """Attaches programs to one kind of target."""

    def attach(self, target: AttachPoint, hook: Hook, programs: Mapping[str, int], *, fall_back: bool) -> Hook:
        """Attach or update; return the hook it became.

        Raises NotFound if the target is gone, and the errors of this module's `attach`.
        """

    def exists(self, target: AttachPoint) -> bool:
        """Return whether the target exists."""


def _attachers(root: Path, netlink: IPRoute, present: Mapping[str, Device]) -> Mapping[AttachPointKind, Attacher]:
    return {
        AttachPointKind.DEVICE: DeviceAttacher(root, netlink, with_former_names(root, present)),
        AttachPointKind.CGROUP: CgroupAttacher(root),
    }


def with_former_names(root: Path, present: Mapping[str, Device]) -> Mapping[str, Device]:
    """Add devices that were renamed since programs were attached, under the name they had then: their programs stay."""
    by_index = {device.ifindex: device for device in present.values()}
    former = {name: by_index[index] for name, index in attached_indexes(root).items() if index in by_index}
    return former | dict(present)


def attached_indexes(root: Path) -> dict[str, int]:
    """Return the interface indexes of the devices that got programs, by the names they had then; some may be gone."""
    return clsact.marked_indexes(root) | linked_devices(root)


def wanted_attachments(
    mode: str, names: Sequence[str], pod_patterns: Sequence[str], present: Mapping[str, Device]
) -> list[Attachment]:
    """Return the hooks for `--attach MODE`, `--device` names and `--pod-device` patterns.

    auto: XDP native on NICs, tc on virtual devices. Raises NotFound for a missing `--device`; a pattern may match nothing yet.
    """
    out: list[Attachment] = []
    for name in dict.fromkeys(names):
        if name not in present:
            raise no_such_device(name, (item for item in present if not present[item].loopback))
        out += [Attachment.on_device(name, hook) for hook in (_ingress(mode, present[name]), TC_EGRESS)]
    taken = {present[name].ifindex for name in names}
    for name in sorted(present):
        if (
            present[name].name == name
            and present[name].ifindex not in taken
            and any(fnmatchcase(name, pattern) for pattern in pod_patterns)
        ):
            # a pod's request with its own address must not leave before the program that translates its reply is attached
            out += [Attachment.on_device(name, hook, optional=True) for hook in (TC_EGRESS, TC_INGRESS)]
    return out


def socket_attachments(cgroup: str) -> list[Attachment]:
    """Return the hooks of socket programs on a cgroup; '': none."""
    return [Attachment.on_cgroup(cgroup, hook) for hook in SOCKET_HOOKS] if cgroup else []


def _ingress(mode: str, device: Device) -> Hook:
    if mode == "auto":
        return TC_INGRESS if device.virtual else XDP
    return INGRESS_MODES[mode]


def attach(
    root: Path, wanted: Iterable[Attachment], programs: Mapping[str, int], *, fall_back: bool
) -> list[Attachment]:
    """Attach or update every hook; return what is attached now (with `fall_back`, tc where a NIC has no native XDP).

    Companions are attached with their hooks. Attached hooks that are no longer wanted are detached last. Raises KernelError,
    Conflict (another XDP program), NotFound, Unsupported; what was attached before the error stays.
    """
    done: list[Attachment] = []
    with IPRoute() as netlink:
        present = list_devices(netlink)
        attachers = _attachers(root, netlink, present)
        for item in wanted:
            attacher = attachers[item.target.kind]
            try:
                hook = attacher.attach(item.target, item.hook, programs, fall_back=fall_back)
                done.append(replace(item, hook=hook))
                if hook.companion:
                    attacher.attach(item.target, hook.companion, programs, fall_back=False)
                    done.append(replace(item, hook=hook.companion))
            except NotFound:
                if not item.optional:
                    raise  # pods may come and go meanwhile
        done = list(dict.fromkeys(done))  # a companion that was already attached is also wanted by itself
        named = with_former_names(root, present)
        _detach_unwanted(root, netlink, done, named, clsact.marked_devices(root, named))
    return done


def still_present(root: Path, attachments: Iterable[Attachment]) -> list[Attachment]:
    """Return the attachments whose target exists, as seen from this network namespace."""
    with IPRoute() as netlink:
        attachers = _attachers(root, netlink, list_devices(netlink))
        return [item for item in attachments if attachers[item.target.kind].exists(item.target)]


def attached(root: Path) -> list[Attachment]:
    """Return every hook attached under `root` in this network namespace, by link or filter, also without an agent."""
    with IPRoute() as netlink:
        present = with_former_names(root, list_devices(netlink))
        found = [item for item in _pinned(root, present) if linked_program(root, item.target, item.hook)]
        for name, device in clsact.marked_devices(root, present).items():
            found += [Attachment.on_device(name, hook) for hook, _ in clsact.filters(netlink, device)]
    return found


def _pinned(root: Path, present: Mapping[str, Device]) -> list[Attachment]:
    """Return what the pinned links attach. A link does not contain the mode of XDP: the device reports it."""
    out = []
    for target, hook in pinned_links(root):
        device = present.get(target.name)
        out.append(Attachment(target, in_mode(hook, device.xdp_mode) if device else hook))
    return out


def lost(root: Path, attachments: Iterable[Attachment], programs: Mapping[str, int]) -> list[tuple[Attachment, str]]:
    """Return the attachments that are no longer in force although their device exists, each with the reason. Raises KernelError."""
    out = []
    filtered = []
    for item in attachments:
        if clsact.uses_filter(item.hook):
            filtered.append(item)
        elif number := _TARGET_IDS[item.target.kind](item.target.name):
            with kernel_errors("read information", f"program {item.hook.program}"):
                program = bpf_prog.prog_info(programs[item.hook.program]).id
            if why := link_fault(root, item.target, item.hook, number, program):
                out.append((item, why))
    if filtered:
        with IPRoute() as netlink:
            present = with_former_names(root, list_devices(netlink))
            for item in filtered:
                device = present.get(item.target.name)
                if device and all(hook != item.hook for hook, _ in clsact.filters(netlink, device)):
                    out.append((item, "its filter was removed"))
    return out


def _index_of(device: str) -> int:
    """Return an interface index, 0 if there is no such device."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0


_TARGET_IDS = {
    AttachPointKind.DEVICE: _index_of,
    AttachPointKind.CGROUP: cgroup_id,
}  # the kernel's id of a target in a link; 0: it is gone


def detach_all(root: Path) -> list[Attachment]:
    """Detach all our programs: links under `root`, and clsact filters on any device by their names; return the hooks.

    Filters whose maps are pinned in another folder stay: they are another agent's.
    """
    with IPRoute() as netlink:
        present = with_former_names(root, list_devices(netlink))
        return _detach_unwanted(root, netlink, (), present, present)


def _detach_unwanted(
    root: Path,
    netlink: IPRoute,
    keep: Sequence[Attachment],
    present: Mapping[str, Device],
    filtered: Mapping[str, Device],
) -> list[Attachment]:
    """Detach what is not in `keep`: pinned links, and filters on the devices `filtered`; `present`: with former names."""
    kept_pins = {link_pin(item.target, item.hook) for item in keep}
    kept_filters = {(present[item.target.name].ifindex, item.hook) for item in keep if clsact.uses_filter(item.hook)}
    gone: list[Attachment] = []
    for item in sorted(_pinned(root, present), key=lambda item: item.hook.companion is None):
        if link_pin(item.target, item.hook) not in kept_pins:
            detach_link(root, item.target, item.hook)
            gone.append(item)
    for name, device in filtered.items():
        for hook, message in clsact.filters(netlink, device):
            is_kept = (device.ifindex, hook) in kept_filters
            if not is_kept and not is_pinned_elsewhere(root, clsact.program_id(message)):
                clsact.remove_filter(netlink, device, hook, message)
                gone.append(Attachment.on_device(name, hook))
        clsact.remove_unused_qdisc(root, netlink, name, device)
    return gone
