"""bpf file systems: mount one for pins, find whether a path is on one, create and open pins by path."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

from lbagent.errors import ConfigError
from lbagent.kernel import bpfsys
from lbagent.kernel.kernel_error import kernel_error, kernel_errors

_BPF_FS_MAGIC = 0xCAFE4A11
_SYSTEM_MOUNT = Path("/sys/fs/bpf")
_MOUNT_FLAGS = 2 | 4 | 8 | 1 << 21  # nosuid, nodev, noexec, relatime
_LIBC = ctypes.CDLL(None, use_errno=True)


def pin(fd: int, path: str | Path) -> None:
    """Pin a map, program or link. Raises KernelError with the path (EEXIST when it is taken)."""
    with kernel_errors("pin", str(path)):
        bpfsys.obj_pin(fd, str(path))


def open_pin(path: str | Path) -> int:
    """Return a descriptor of the object pinned at a path. Raises KernelError with the path (ENOENT when there is none)."""
    with kernel_errors("open pin", str(path)):
        return bpfsys.obj_get(str(path))


def ensure_bpffs(bpffs: str | Path) -> bool:
    """Create the directory, and mount a bpf file system first where there is none; return whether one was mounted.

    Raises ConfigError, KernelError. Never mounts over a folder that is not empty: the mount would hide its contents.
    """
    path = Path(bpffs).absolute()
    try:
        mounted = is_bpffs(path)
    except PermissionError as error:
        if "." in path.name:  # the kernel returns EPERM for it
            raise ConfigError(
                f"--bpffs {bpffs}: a bpf file system has no names with dots; nothing was changed"
            ) from None
        raise kernel_error("access", error.errno or 0, str(path)) from None
    if not mounted:
        _mount(_SYSTEM_MOUNT if path.is_relative_to(_SYSTEM_MOUNT) and _SYSTEM_MOUNT.is_dir() else path, bpffs)
    with kernel_errors("create", str(path)):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return not mounted


def _mount(target: Path, bpffs: str | Path) -> None:
    made = not target.exists()
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        used = any(target.iterdir())
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"--bpffs {bpffs}: {target} is not a folder; nothing was changed; give a folder") from None
    except OSError as error:
        raise kernel_error("create", error.errno or 0, str(target)) from None
    if used:
        raise ConfigError(
            f"--bpffs {bpffs}: {target} is neither a bpf file system nor empty; nothing was mounted over it; give an empty folder,"
            f" or one under {_SYSTEM_MOUNT}"
        )
    if _LIBC.mount(b"bpf", os.fsencode(target), b"bpf", ctypes.c_ulong(_MOUNT_FLAGS), b"mode=0700") != 0:
        number = ctypes.get_errno()
        if made:
            target.rmdir()
        raise kernel_error("mount a bpf file system", number, str(target))


def mounts() -> list[Path]:
    """Return the mount points of bpf file systems that this process sees."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    places = [parts[1] for parts in (line.split() for line in lines) if parts[2] == "bpf"]
    return [Path(place.replace(r"\040", " ")) for place in dict.fromkeys(places)]


def is_bpffs(path: Path) -> bool:
    """Return whether a path, or its nearest existing ancestor, is on a bpf file system. Raises PermissionError."""
    while not path.exists() and path != path.parent:
        path = path.parent
    buffer = ctypes.create_string_buffer(256)
    if _LIBC.statfs(os.fsencode(path), buffer) != 0:
        return False
    return bool(struct.unpack_from("=l", buffer)[0] & 0xFFFFFFFF == _BPF_FS_MAGIC)
