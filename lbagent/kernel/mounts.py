"""Mounts: whether only this process's mount namespace sees a file system, which then ends with it; and cgroups of cgroup2.

`ip netns exec` makes such a namespace, and a container has one. Pins on a bpf file system mounted there vanish with the last
process in it. Source: mount_namespaces(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from lbagent.errors import ConfigError, NotFound

_FIRST_MOUNT = "mnt:[4026531832]"  # MNT_NS_INIT_INO, the same on every machine from Linux 6.18 on
_FIRST_PID = "pid:[4026531836]"  # PROC_PID_INIT_INO
_CGROUP2_MAGIC = 0x63677270
_LIBC = ctypes.CDLL(None, use_errno=True)
PRIVATE_ADVICE = (
    "mount a bpf file system on the host (mount -t bpf bpf /sys/fs/bpf) and give the container that folder; in a network namespace"
    " start with nsenter --net, which leaves the mounts as they are, and not with ip netns exec"
)


def is_private(path: Path, *, mounted_here: bool) -> bool:
    """Return whether the mount that holds `path` is in this process's mount namespace alone.

    `mounted_here`: this process mounted it. In a container, whose first process is not the machine's, there is no other sign.
    Where the kernel denies access, the answer is no.
    """
    if _is_of_first_process():
        return mounted_here and _link("/proc/self/ns/pid") != _FIRST_PID
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        device = path.stat().st_dev
        lines = Path("/proc/1/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return all(line.split()[2] != wanted for line in lines)


def would_be_private() -> bool:
    """Return whether only this process's mount namespace would see a file system that it mounts now."""
    return not _is_of_first_process() or _link("/proc/self/ns/pid") != _FIRST_PID


def _is_of_first_process() -> bool:
    """Return whether this process has the mount namespace of the first process that it can see."""
    own = _link("/proc/self/ns/mnt")
    return own == _FIRST_MOUNT or own in ("", _link("/proc/1/ns/mnt"))


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def first_cgroup() -> str:
    """Return the widest mount of cgroup2: the machine's root rather than the container's own cgroup; '' for none."""
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return widest_cgroup(text.splitlines())


def widest_cgroup(lines: Iterable[str]) -> str:
    """Return the first one of the widest mounts of cgroup2, by the lines of mountinfo.

    A runtime mounts a container's own cgroup before all others. The root of each mount decides: it is relative to the root of the
    reader's cgroup namespace, so that an ancestor begins with as many `..`. Source: cgroup_namespaces(7).
    """
    found = []
    for line in lines:
        fields, _, kind = line.partition(" - ")
        if kind.split(" ")[0] == "cgroup2":
            root, place = fields.split(" ")[3:5]
            parts = [part for part in root.split("/") if part]
            above = parts.count("..")
            found.append((-above, len(parts) - above, place.replace(r"\040", " ")))
    return min(found, key=lambda each: each[:2])[2] if found else ""


def open_cgroup(path: str) -> int:
    """Return a descriptor of a cgroup. Raises NotFound, ConfigError (it is no cgroup of cgroup2)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no cgroup {path}; mount cgroup2, or give another one by --cgroup") from None
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.fstatfs(fd, buffer) or struct.unpack_from("=l", buffer)[0] & 0xFFFFFFFF != _CGROUP2_MAGIC:
        os.close(fd)
        raise ConfigError(f"--cgroup {path}: it is not on a cgroup2 file system")
    return fd


def cgroup_id(path: str) -> int:
    """Return the kernel's id of a cgroup, as in a link; 0: there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0
