"""The cgroup2 file system: where it is mounted, opening a cgroup; and the cookie of a network namespace."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

from lbagent.errors import ConfigError, NotFound

_CGROUP2_MAGIC = 0x63677270
_SO_NETNS_COOKIE = 71  # Linux 5.14
_LIBC = ctypes.CDLL(None, use_errno=True)


def first_mount() -> str:
    """Return where cgroup2 is mounted first; '' where it is not."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return next((parts[1].replace(r"\040", " ") for parts in map(str.split, lines) if parts[2] == "cgroup2"), "")


def open_cgroup(path: str) -> int:
    """Return a descriptor of a cgroup. Raises NotFound, ConfigError (it is no cgroup of cgroup2)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no cgroup {path}; mount cgroup2, or name another one by --cgroup") from None
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.fstatfs(fd, buffer) or struct.unpack_from("=l", buffer)[0] & 0xFFFFFFFF != _CGROUP2_MAGIC:
        os.close(fd)
        raise ConfigError(f"--cgroup {path}: it is not on a cgroup2 file system")
    return fd


def cgroup_id(path: str) -> int:
    """Return the number by which the kernel names a cgroup in a link; 0: there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def netns_cookie() -> int:
    """Return the number by which programs know the network namespace of the calling thread. Raises OSError before Linux 5.14."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0])
