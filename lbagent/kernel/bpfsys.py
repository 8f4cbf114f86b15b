"""The system call bpf(2), and the parts common to maps, programs and links: pins, descriptors by id, information.

bpfsys, bpf_map, bpf_prog and bpf_link raise OSError with the kernel's errno. They have descriptors only; the caller has the name
of the map, program or device, and maps the error to one of this project with `kernel_errors` (kernel/kernel_error.py). Attribute
layouts: include/uapi/linux/bpf.h, `union bpf_attr`; each struct format names its fields in order. Descriptors returned are
close-on-exec, and the caller closes them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from enum import IntEnum

from lbagent.errors import Unsupported

_NUMBERS = {"x86_64": 321, "aarch64": 280}  # __NR_bpf; aarch64's is the generic table's
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

ENOTSUPP = 524  # internal to the kernel, but returned here: this map type lacks the operation
BPF_OBJ_NAME_LEN = 16
_F_RDONLY = 1 << 3  # BPF_F_RDONLY: the descriptor neither writes nor maps memory writable

Buffer = ctypes.Array[ctypes.c_char]


class Cmd(IntEnum):
    """The bpf(2) commands used here. Source: enum bpf_cmd."""

    MAP_CREATE = 0
    MAP_LOOKUP_ELEM = 1
    MAP_UPDATE_ELEM = 2
    MAP_DELETE_ELEM = 3
    MAP_GET_NEXT_KEY = 4
    PROG_LOAD = 5
    OBJ_PIN = 6
    OBJ_GET = 7
    PROG_TEST_RUN = 10
    PROG_GET_FD_BY_ID = 13
    MAP_GET_FD_BY_ID = 14
    OBJ_GET_INFO_BY_FD = 15
    PROG_QUERY = 16
    RAW_TRACEPOINT_OPEN = 17
    MAP_FREEZE = 22
    MAP_LOOKUP_BATCH = 24
    MAP_UPDATE_BATCH = 26
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    LINK_UPDATE = 29
    LINK_DETACH = 34


def _syscall_number() -> int:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise Unsupported(f"the processor {machine}", advice="lbagent runs on x86_64 and aarch64")
    return _NUMBERS[machine]


_NR = _NUMBERS.get(platform.machine(), 0)


def call(cmd: Cmd, attr: Buffer, size: int) -> int:
    """Make the system call on `attr`, which the kernel may overwrite; return the result, or the negative errno."""
    while True:
        result = int(_LIBC.syscall(_NR or _syscall_number(), int(cmd), attr, size))
        if result >= 0:
            return result
        error = ctypes.get_errno()
        # a signal interrupts the verifier with EAGAIN, other commands with EINTR
        if error != errno.EINTR and not (error == errno.EAGAIN and cmd == Cmd.PROG_LOAD):
            return -error


def bpf(cmd: Cmd, attr: bytes | bytearray, subject: str = "") -> int:
    """Make the system call; return its result. The kernel may overwrite a bytearray. Raises OSError."""
    buffer = ctypes.create_string_buffer(bytes(attr), len(attr))
    result = call(cmd, buffer, len(attr))
    if result < 0:
        raise os_error(-result, subject)
    if isinstance(attr, bytearray):
        attr[:] = buffer.raw
    return result


def os_error(number: int, subject: str = "") -> OSError:
    """Return the error of an errno; Python selects the subclass, such as FileNotFoundError."""
    return OSError(number, os.strerror(number), subject or None)


def pointer(data: bytes) -> int:
    """Return the address of the bytes; the caller keeps them alive, and the kernel must only read them."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def obj_pin(fd: int, path: str) -> None:
    """Pin a map, program or link on a bpf file system. Raises OSError EEXIST when the path is taken."""
    raw = os.fsencode(path) + b"\0"
    bpf(Cmd.OBJ_PIN, struct.pack("<QII", pointer(raw), fd, 0), path)  # pathname, bpf_fd, file_flags


def obj_get(path: str, *, read_only: bool = False) -> int:
    """Return a descriptor of the object pinned at a path; `read_only` needs no write permission. Raises OSError ENOENT."""
    raw = os.fsencode(path) + b"\0"
    return bpf(Cmd.OBJ_GET, struct.pack("<QII", pointer(raw), 0, _F_RDONLY if read_only else 0), path)


def obj_info(fd: int, size: int) -> bytes:
    """Return the first `size` bytes of struct bpf_map_info, bpf_prog_info or bpf_link_info, whichever `fd` is. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    bpf(Cmd.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, size, ctypes.addressof(buffer)))  # bpf_fd, info_len, info
    return buffer.raw


def same_object(one: int, other: int) -> bool:
    """Return whether two descriptors refer to the same map, program or link. Raises OSError."""
    kinds = [os.readlink(f"/proc/self/fd/{fd}") for fd in (one, other)]  # anon_inode:bpf-map, ...
    return kinds[0] == kinds[1] and obj_info(one, 8) == obj_info(other, 8)  # type, id


def fd_by_id(cmd: Cmd, ident: int) -> int:
    """Return a descriptor for an id, by one of the commands *_GET_FD_BY_ID. Raises OSError ENOENT when the object is gone."""
    return bpf(cmd, struct.pack("<III", ident, 0, 0))  # id, next_id, open_flags
