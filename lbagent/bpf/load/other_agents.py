"""Detects another agent that already balances at this device. Two of them would translate one packet twice, on whichever hooks.

A clsact filter (before Linux 6.6) outlives the pins of its agent, and the next agent at the device takes its place. So a filter
is another agent's only while the maps of that agent are pinned.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lbagent.bpf.hooks import HOOKS, TC_EGRESS, TC_INGRESS, AttachPoint, AttachPointKind
from lbagent.bpf.load import clsact
from lbagent.bpf.load.links import linked_program
from lbagent.errors import Conflict, KernelError
from lbagent.kernel import bpf_link, bpf_map, bpf_prog, bpffs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lbagent.bpf.load.devices import Device
    from lbagent.iproute import IPRoute

_TELLTALE = "lb_filter"  # a map of every entry program; if it is not ours, the program is another agent's


def require_no_other_agent(root: Path, netlink: IPRoute, device: Device, prog_fd: int) -> None:
    """Raise Conflict if programs of an agent with other pins than those under `root` run on the device.

    `prog_fd` is one of the agent's programs. So are those in links that are pinned under `root`, whatever maps they have.
    """
    target = AttachPoint(AttachPointKind.DEVICE, device.name)
    ours = {linked_program(root, target, hook) for hook in HOOKS}
    own_maps = frozenset(bpf_prog.prog_map_ids(prog_fd))
    in_filters = clsact.filter_programs(netlink, device)
    for ident in (*_programs_in_links(device), *in_filters):
        if ident in ours or (ident in in_filters and not is_pinned_elsewhere(root, ident)):
            continue
        if name := _name_of_another(ident, own_maps):
            raise Conflict(
                f"device {device.name} already runs the program {name} (id {ident}) of another lbagent, whose pins are in another"
                " --bpffs; nothing was attached; stop that agent and run `lbagent cleanup --bpffs` with its folder, or give another"
                " device"
            )


def is_pinned_elsewhere(root: Path, ident: int) -> bool:
    """Return whether the maps of a program of lbagent are pinned in another folder than `root`: then it is another agent's."""
    wanted = {each for each in _map_ids(ident) if _map_name(each) == _TELLTALE}
    if not wanted:
        return False
    pins = (pin for mount in bpffs.mounts() for pin in mount.rglob(_TELLTALE))
    folders = {os.path.realpath(pin.parent) for pin in pins if _pinned_map_id(pin) in wanted}
    return bool(folders) and os.path.realpath(root) not in folders


def _pinned_map_id(pin: Path) -> int:
    try:
        fd = bpffs.open_pin(pin)
    except KernelError:
        return 0
    try:
        return bpf_map.map_info(fd).id
    except OSError:  # no map
        return 0
    finally:
        os.close(fd)


def _programs_in_links(device: Device) -> list[int]:
    found = [device.xdp_prog_id] if device.xdp_prog_id else []
    for hook in (TC_INGRESS, TC_EGRESS):
        if not clsact.uses_filter(hook):
            try:
                found += bpf_link.attached_programs(device.ifindex, hook.attach_type)
            except OSError:
                continue  # the device is gone
    return found


def _map_ids(ident: int) -> Iterable[int]:
    try:
        fd = bpf_prog.prog_fd_by_id(ident)
    except OSError:
        return ()
    try:
        return bpf_prog.prog_map_ids(fd)
    finally:
        os.close(fd)


def _name_of_another(ident: int, own_maps: frozenset[int]) -> str:
    """Return the name of a program that is one of lbagent's and does not share our maps, else ''."""
    try:
        fd = bpf_prog.prog_fd_by_id(ident)
    except OSError:
        return ""
    try:
        maps = frozenset(bpf_prog.prog_map_ids(fd))
        if maps & own_maps or not any(_map_name(each) == _TELLTALE for each in maps):
            return ""
        return bpf_prog.prog_info(fd).name
    finally:
        os.close(fd)


def _map_name(ident: int) -> str:
    try:
        fd = bpf_map.map_fd_by_id(ident)
    except OSError:
        return ""
    try:
        return bpf_map.map_info(fd).name
    finally:
        os.close(fd)
