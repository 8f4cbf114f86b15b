"""BPF links: attach a program to a device, replace it, detach it. Raises OSError (kernel/bpfsys.py)."""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum

from msgspec import Struct

from lbagent.kernel.bpfsys import Cmd, bpf, obj_info

BPF_F_REPLACE = 1 << 2
_LINK_TYPE_CGROUP = 3
_QUERY_EFFECTIVE = 1


class AttachType(IntEnum):
    """Where a link attaches. Source: enum bpf_attach_type."""

    INET4_CONNECT = 10
    INET6_CONNECT = 11
    UDP4_SENDMSG = 14
    UDP6_SENDMSG = 15
    UDP4_RECVMSG = 19
    UDP6_RECVMSG = 20
    INET4_GETPEERNAME = 29
    INET6_GETPEERNAME = 30
    XDP = 37
    TCX_INGRESS = 46
    TCX_EGRESS = 47


def link_create(prog_fd: int, target: int, attach: AttachType, flags: int = 0) -> int:
    """Attach a program to an interface index (of the calling thread's netns) or to an open cgroup; return the link."""
    # prog_fd, target_ifindex or target_fd, attach_type, flags, then the union for other kinds of links
    return bpf(Cmd.LINK_CREATE, struct.pack("<IIIIQQQ", prog_fd, target, attach, flags, 0, 0, 0))


def link_update(link_fd: int, prog_fd: int, old_fd: int | None = None) -> None:
    """Replace the program of a link, atomically: each packet meets the old one or the new one."""
    flags = BPF_F_REPLACE if old_fd is not None else 0
    bpf(Cmd.LINK_UPDATE, struct.pack("<IIII", link_fd, prog_fd, flags, old_fd or 0))


def link_detach(link_fd: int) -> None:
    """Detach a link at once, even while other processes hold it."""
    bpf(Cmd.LINK_DETACH, struct.pack("<I", link_fd))


def attached_programs(ifindex: int, attach: AttachType) -> list[int]:
    """Return the ids of the programs that run at one TCX hook of a device (of the calling thread's netns), in their order.

    Raises OSError, EINVAL on a kernel without TCX.
    """
    return _query(ifindex, attach, 0)


def cgroup_programs(cgroup: int, attach: AttachType) -> list[int]:
    """Return the ids of the programs that run for an open cgroup, including those attached to an ancestor. Raises OSError."""
    return _query(cgroup, attach, _QUERY_EFFECTIVE)


def _query(target: int, attach: AttachType, flags: int) -> list[int]:
    room = 64  # the kernel's limit at one target (BPF_MPROG_MAX, BPF_CGROUP_MAX_PROGS)
    ids = ctypes.create_string_buffer(4 * room)
    # target_ifindex or target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt, pad, prog_attach_flags, link_ids,
    # link_attach_flags, revision
    attr = bytearray(struct.pack("<IIIIQIIQQQQ", target, attach, flags, 0, ctypes.addressof(ids), room, 0, 0, 0, 0, 0))
    bpf(Cmd.PROG_QUERY, attr)
    count = struct.unpack_from("<I", attr, 24)[0]
    return list(struct.unpack_from(f"<{count}I", ids))


class LinkInfo(Struct, frozen=True):
    """struct bpf_link_info: `target_id` is an interface index, or the id of a cgroup; 0 once the target is gone."""

    type: int
    id: int
    prog_id: int
    target_id: int


def link_info(fd: int) -> LinkInfo:
    """Describe a link."""
    raw = obj_info(fd, 64)
    kind, ident, prog_id = struct.unpack_from("<III", raw)
    (target_id,) = struct.unpack_from("<Q" if kind == _LINK_TYPE_CGROUP else "<I", raw, 16)
    return LinkInfo(kind, ident, prog_id, target_id)
