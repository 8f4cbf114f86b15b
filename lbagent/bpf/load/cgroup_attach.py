"""Attaches socket programs to a cgroup by pinned link, beside programs of other owners, but never beside those of another lbagent.

The kernel runs the programs of a cgroup for the sockets of all its processes and of the cgroups below. Ours ignore sockets of
another network namespace than their agent's. So two agents may share a cgroup if they serve two network namespaces, or if one of
them serves native pools only: then they have no frontend in common.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lbagent.bpf.load.links import attach_link, pin_path
from lbagent.errors import Conflict, KernelError, NotFound, Unsupported
from lbagent.kernel import bpf_link, bpf_map, bpf_prog
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.kernel.mounts import cgroup_id, open_cgroup
from lbagent.maps.layout import LB_CONFIG, ConfigFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from lbagent.bpf.hooks import AttachPoint, Hook

_TELLTALE = "lb_config"  # a map of every socket program; if it is not ours, the program is another agent's
_AT_COOKIE, _AT_FLAGS = LB_CONFIG.offsets()["netns_cookie"], LB_CONFIG.offsets()["flags"]
_FLAGS_BYTES = 8


class CgroupAttacher(Struct, frozen=True):
    """Attaches programs to cgroups of the cgroup2 file system."""

    root: Path

    def attach(self, target: AttachPoint, hook: Hook, programs: Mapping[str, int], *, fall_back: bool) -> Hook:  # noqa: ARG002 as every Attacher
        """Attach to a cgroup, or update what is attached there; return the hook. There is no fall-back for a socket program.

        Raises NotFound (no such cgroup), ConfigError (the path is none), Conflict (another lbagent, or a program that allows none
        beside it), Unsupported, KernelError.
        """
        fd = open_cgroup(target.name)
        try:
            if not pin_path(self.root, target, hook).exists():
                with kernel_errors("look for other agents", f"cgroup {target.name}"):
                    _require_no_other_agent(fd, target, hook, programs[hook.program])
            attach_link(self.root, target, fd, hook, programs[hook.program], target_id=os.fstat(fd).st_ino)
        except KernelError as error:
            raise _explain(error, target, hook) from error
        finally:
            os.close(fd)
        return hook

    def exists(self, target: AttachPoint) -> bool:
        """Return whether the cgroup exists."""
        return cgroup_id(target.name) != 0


def _explain(error: KernelError, target: AttachPoint, hook: Hook) -> Exception:
    """Return the remedy for a refused attachment."""
    if error.errno == errno.EPERM:
        return Conflict(
            f"cgroup {target.name} has a {hook} program, or one above it, that allows none beside it; socket programs were not"
            " attached; take it off, or use --no-socket-lb"
        )
    if error.errno == errno.ENOENT:
        return NotFound(f"cgroup {target.name} has gone")
    if error.errno == errno.EINVAL:
        return Unsupported(f"{hook} programs on cgroups (CONFIG_CGROUP_BPF)", advice="use --no-socket-lb")
    return error


class _Served(NamedTuple):
    """The scope of socket programs of lbagent: a network namespace, and whether they serve native pools only."""

    netns_cookie: int
    pools_alone: bool


def _require_no_other_agent(cgroup: int, target: AttachPoint, hook: Hook, prog_fd: int) -> None:
    """Raise Conflict if programs of another agent run here with the same scope as `prog_fd`, one of the agent's programs."""
    own_maps = set(bpf_prog.prog_map_ids(prog_fd))
    own = _served(own_maps)
    for ident in bpf_link.cgroup_programs(cgroup, hook.attach_type):
        try:
            fd = bpf_prog.prog_fd_by_id(ident)
        except FileNotFoundError:
            continue  # it is gone meanwhile
        try:
            maps, name = bpf_prog.prog_map_ids(fd), bpf_prog.prog_info(fd).name
        finally:
            os.close(fd)
        if not own_maps & set(maps) and own & _served(maps):
            raise Conflict(
                f"cgroup {target.name} already runs the program {name} (id {ident}) of another lbagent, whose pins are in another"
                " --bpffs; socket programs were not attached; stop that agent and run `lbagent cleanup --bpffs` with its folder"
            )


def _served(map_ids: Iterable[int]) -> set[_Served]:
    """Return the scope of a program with these maps in a list; an empty list if the program is not lbagent's."""
    out = set()
    for ident in map_ids:
        try:
            fd = bpf_map.map_fd_by_id(ident)
        except FileNotFoundError:
            continue
        try:
            info = bpf_map.map_info(fd)
            if info.name == _TELLTALE and info.value_size >= _AT_COOKIE + 8:
                record = bpf_map.map_lookup(fd, bytes(4), info.value_size) or b""
                cookie = int.from_bytes(record[_AT_COOKIE : _AT_COOKIE + 8], "little")
                flags = int.from_bytes(record[_AT_FLAGS : _AT_FLAGS + _FLAGS_BYTES], "little")
                out.add(_Served(cookie, bool(flags & ConfigFlag.POOLS_ALONE)))
        finally:
            os.close(fd)
    return {served for served in out if served.netns_cookie}
