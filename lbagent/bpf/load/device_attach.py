"""Attaches one program to one device: by pinned link or, for tc on a kernel without TCX, by clsact filter."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from lbagent.bpf.load import clsact
from lbagent.bpf.load.devices import MAX_NATIVE_XDP_MTU
from lbagent.bpf.load.links import attach_link, detach_link, linked_program, pin_path
from lbagent.bpf.load.other_agents import require_no_other_agent
from lbagent.errors import Conflict, KernelError, NotFound, Unsupported
from lbagent.kernel import bpf_prog
from lbagent.kernel.kernel_error import kernel_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lbagent.bpf.hooks import AttachPoint, Hook
    from lbagent.bpf.load.devices import Device
    from lbagent.iproute import IPRoute


class DeviceAttacher(Struct, frozen=True):
    """Attaches programs to the devices that are `present` in this network namespace."""

    root: Path
    netlink: IPRoute
    present: Mapping[str, Device]

    def attach(self, target: AttachPoint, hook: Hook, programs: Mapping[str, int], *, fall_back: bool) -> Hook:
        """Attach to one device, or update what is attached there; return the hook it became (with `fall_back`, another).

        Raises NotFound (the device has gone), Conflict (another XDP program, another agent), Unsupported, KernelError.
        """
        device = self.present.get(target.name)
        if device is None:
            raise NotFound(f"device {target.name} is gone, and its programs with it")
        if not pin_path(self.root, target, hook).exists():
            with kernel_errors("look for other agents", f"device {device.name}"):
                require_no_other_agent(self.root, self.netlink, device, programs[hook.program])
        if clsact.uses_filter(hook):
            clsact.set_filter(self.root, self.netlink, target.name, device, hook, programs[hook.program])
            return hook
        if hook.xdp_mode and self._in_other_mode(target, device, hook):
            detach_link(self.root, target, hook)  # the kernel does not replace native XDP by generic, or the reverse
        try:
            attach_link(self.root, target, device.ifindex, hook, programs[hook.program])
        except KernelError as error:
            reason = _explain(error, device, hook)
            if fall_back and hook.fallback and isinstance(reason, Unsupported):
                return self.attach(target, hook.fallback, programs, fall_back=False)
            raise reason from error
        return hook

    def exists(self, target: AttachPoint) -> bool:
        """Return whether the device is in this network namespace."""
        return target.name in self.present

    def _in_other_mode(self, target: AttachPoint, device: Device, hook: Hook) -> bool:
        ours = device.xdp_prog_id and linked_program(self.root, target, hook)
        return bool(ours) and device.xdp_mode != hook.xdp_mode


def _explain(error: KernelError, device: Device, hook: Hook) -> Exception:
    """Return the remedy for a refused attachment."""
    name = device.name
    if hook.xdp_mode and error.errno in (errno.EBUSY, errno.EEXIST):
        owner = _program_name(device.xdp_prog_id)
        return Conflict(
            f"device {name} already runs the XDP program {owner}, which is not lbagent's; it was left alone; "
            f"take it off (ip link set dev {name} xdp off) or use --attach tc"
        )
    if hook.fallback and error.errno in (errno.ERANGE, errno.EOPNOTSUPP, errno.EINVAL):
        advice = ""
        if device.mtu > MAX_NATIVE_XDP_MTU:
            advice = f"MTU {device.mtu} may be too large for its driver (3,498 is a usual limit); "
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
