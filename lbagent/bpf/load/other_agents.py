"""Does another agent already balance at this device? Two of them would translate one packet twice, whichever hooks they sit on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lbagent.bpf.hooks import HOOKS, TC_EGRESS, TC_INGRESS, AttachTarget, TargetKind
from lbagent.bpf.load.links import linked_program
from lbagent.errors import Conflict
from lbagent.kernel import bpf_link, bpf_map, bpf_prog
from lbagent.kernel.features import has_tcx

if TYPE_CHECKING:
    from pathlib import Path

    from lbagent.bpf.load.devices import Device

_TELLTALE = "lb_filter"  # a map of every entry program; another one than ours is another agent's


def require_no_other_agent(root: Path, device: Device, prog_fd: int) -> None:
    """Raise Conflict when programs of an agent with other pins than those under `root` run on the device.

    `prog_fd` is a program of ours. Programs in links that are pinned under `root` are ours as well, whatever maps they have.
    clsact filters (before Linux 6.6) are not looked at: they outlive the pins of their agent.
    """
    target = AttachTarget(TargetKind.DEVICE, device.name)
    ours = {linked_program(root, target, hook) for hook in HOOKS}
    own_maps = frozenset(bpf_prog.prog_map_ids(prog_fd))
    for ident in _programs_on(device):
        if ident not in ours and (name := _name_of_another(ident, own_maps)):
            raise Conflict(
                f"device {device.name} already runs the program {name} (id {ident}) of another lbagent, whose pins are in another"
                " --bpffs; nothing was attached; stop that agent and run `lbagent cleanup --bpffs` with its folder, or give another"
                " device"
            )


def _programs_on(device: Device) -> list[int]:
    found = [device.xdp_prog_id] if device.xdp_prog_id else []
    if has_tcx():
        for hook in (TC_INGRESS, TC_EGRESS):
            try:
                found += bpf_link.attached_programs(device.ifindex, hook.attach_type)
            except OSError:
                continue  # the device went
    return found


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
