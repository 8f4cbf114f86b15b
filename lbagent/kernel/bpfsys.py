"""bpf(2): the system call itself, pins, and all that is asked of maps. Programs and links are in kernel/bpf_prog.py.

Attribute layouts: include/uapi/linux/bpf.h, `union bpf_attr`; each struct format names its fields in order. Everything
raises OSError with the kernel's errno; kernel.py turns it into the errors of this project. Descriptors returned are the
caller's to close and close-on-exec.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from lbagent.errors import Unsupported

_NUMBERS = {"x86_64": 321, "aarch64": 280}  # __NR_bpf; aarch64's is the generic table's
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

ENOTSUPP = 524  # the kernel's own number, which it lets out here: this map type has no such operation
BPF_OBJ_NAME_LEN = 16


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
    PROG_GET_NEXT_ID = 11
    PROG_GET_FD_BY_ID = 13
    MAP_GET_FD_BY_ID = 14
    OBJ_GET_INFO_BY_FD = 15
    MAP_FREEZE = 22
    MAP_LOOKUP_BATCH = 24
    MAP_UPDATE_BATCH = 26
    MAP_DELETE_BATCH = 27
    LINK_CREATE = 28
    LINK_UPDATE = 29
    LINK_GET_FD_BY_ID = 30
    LINK_GET_NEXT_ID = 31
    ENABLE_STATS = 32
    LINK_DETACH = 34


class MapInfo(NamedTuple):
    """struct bpf_map_info, the part we compare."""

    type: int
    id: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int
    name: str


class Batch(NamedTuple):
    """Outcome of a batch: entries done, and the errno that stopped it (0: all done)."""

    done: int
    errno: int


def _syscall_number() -> int:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise Unsupported(f"the processor {machine}", advice="lbagent runs on x86_64 and aarch64")
    return _NUMBERS[machine]


_NR = _NUMBERS.get(platform.machine(), 0)


def call(cmd: Cmd, attr: ctypes.Array[ctypes.c_char], size: int) -> int:
    """Make the system call on `attr`, which the kernel may write to; return the result, or the negative errno."""
    while True:
        result = int(_LIBC.syscall(_NR or _syscall_number(), int(cmd), attr, size))
        if result >= 0:
            return result
        error = ctypes.get_errno()
        # a signal interrupts the verifier with EAGAIN, everything else with EINTR
        if error != errno.EINTR and not (error == errno.EAGAIN and cmd == Cmd.PROG_LOAD):
            return -error


def _bpf(cmd: Cmd, attr: bytes, what: str = "") -> int:
    result = call(cmd, ctypes.create_string_buffer(attr, len(attr)), len(attr))
    if result < 0:
        raise OSError(-result, os.strerror(-result), what or None)
    return result


def _pointer(data: bytes) -> int:
    """Return where the bytes are; the caller keeps them alive and lets the kernel only read them."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def map_create(
    kind: int, key_size: int, value_size: int, max_entries: int, flags: int = 0, name: str = "", inner_fd: int = 0
) -> int:
    """Create a map; `inner_fd` is the template of a map of maps."""
    # type, key_size, value_size, max_entries, flags, inner_map_fd, numa_node, name
    raw_name = name.encode()[: BPF_OBJ_NAME_LEN - 1]
    attr = struct.pack("<IIIIIII16s", kind, key_size, value_size, max_entries, flags, inner_fd, 0, raw_name)
    return _bpf(Cmd.MAP_CREATE, attr, name)


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return the value of a key, None if there is none. `value_bytes` counts all CPUs of a per-CPU map."""
    value = ctypes.create_string_buffer(value_bytes)
    attr = struct.pack("<IIQQQ", fd, 0, _pointer(key), ctypes.addressof(value), 0)
    result = call(Cmd.MAP_LOOKUP_ELEM, ctypes.create_string_buffer(attr, 32), 32)
    if result < 0:
        if result == -errno.ENOENT:
            return None
        raise OSError(-result, os.strerror(-result))
    return value.raw


def map_update(fd: int, key: bytes, value: bytes, flags: int = 0) -> None:
    """Insert or replace one entry."""
    _bpf(Cmd.MAP_UPDATE_ELEM, struct.pack("<IIQQQ", fd, 0, _pointer(key), _pointer(value), flags))


def map_delete(fd: int, key: bytes) -> bool:
    """Delete one entry; return whether it was there."""
    attr = struct.pack("<IIQQQ", fd, 0, _pointer(key), 0, 0)
    result = call(Cmd.MAP_DELETE_ELEM, ctypes.create_string_buffer(attr, 32), 32)
    if result < 0 and result != -errno.ENOENT:
        raise OSError(-result, os.strerror(-result))
    return result == 0


def map_next_key(fd: int, key: bytes | None, key_size: int) -> bytes | None:
    """Return the key after `key` (the first after None), None at the end."""
    out = ctypes.create_string_buffer(key_size)
    attr = struct.pack("<IIQQQ", fd, 0, _pointer(key) if key is not None else 0, ctypes.addressof(out), 0)
    result = call(Cmd.MAP_GET_NEXT_KEY, ctypes.create_string_buffer(attr, 32), 32)
    if result < 0:
        if result == -errno.ENOENT:
            return None
        raise OSError(-result, os.strerror(-result))
    return out.raw


def _batch(cmd: Cmd, fd: int, keys: int, values: int, count: int) -> Batch:
    # in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
    attr = ctypes.create_string_buffer(struct.pack("<QQQQIIQQ", 0, 0, keys, values, count, fd, 0, 0), 56)
    result = call(cmd, attr, 56)
    if result >= 0:
        return Batch(count, 0)
    done = struct.unpack_from("<I", attr, 32)[0]
    # a kernel that refuses the operation before it starts does not touch the count
    return Batch(0 if -result in (ENOTSUPP, errno.EINVAL, errno.EPERM) else done, -result)


def map_update_batch(fd: int, keys: bytes, values: bytes, sizes: tuple[int, int], start: int, stop: int) -> Batch:
    """Write entries start..stop of those lying side by side; `sizes` are those of a key and a value."""
    at_key, at_value = _pointer(keys) + sizes[0] * start, _pointer(values) + sizes[1] * start
    return _batch(Cmd.MAP_UPDATE_BATCH, fd, at_key, at_value, stop - start)


def map_delete_batch(fd: int, keys: bytes, key_size: int, start: int, stop: int) -> Batch:
    """Delete keys start..stop; stops with ENOENT at the first one missing."""
    return _batch(Cmd.MAP_DELETE_BATCH, fd, _pointer(keys) + key_size * start, 0, stop - start)


class BatchReader:
    """Reads a map in pieces by LOOKUP_BATCH; `read` returns joined keys, joined values and their count, 0 at the end."""

    def __init__(self, fd: int, key_size: int, value_bytes: int, room: int = 8192) -> None:
        """Take the sizes of one entry; `room` entries fit one piece, more when a hash bucket needs it."""
        self._fd, self._key_size, self._value_bytes, self._room = fd, key_size, value_bytes, room
        self._position = ctypes.create_string_buffer(max(key_size, 8))
        self._started = self._ended = False

    def read(self) -> tuple[bytes, bytes, int]:
        """Return the next piece. Raises OSError with ENOTSUPP or EINVAL on a map without the operation."""
        while not self._ended:
            keys = ctypes.create_string_buffer(self._room * self._key_size)
            values = ctypes.create_string_buffer(self._room * self._value_bytes)
            error, count = self._step(keys, values)
            if error == errno.ENOSPC and not count:
                self._room *= 2
                continue
            if error not in (0, errno.ENOENT, errno.ENOSPC):
                raise OSError(error, os.strerror(error))
            self._started, self._ended = True, error == errno.ENOENT
            if count:
                return keys.raw[: count * self._key_size], values.raw[: count * self._value_bytes], count
        return b"", b"", 0

    def _step(self, keys: ctypes.Array[ctypes.c_char], values: ctypes.Array[ctypes.c_char]) -> tuple[int, int]:
        at = ctypes.addressof(self._position)
        pointers = ctypes.addressof(keys), ctypes.addressof(values)
        attr = ctypes.create_string_buffer(
            struct.pack("<QQQQIIQQ", at if self._started else 0, at, *pointers, self._room, self._fd, 0, 0), 56
        )
        result = call(Cmd.MAP_LOOKUP_BATCH, attr, 56)
        done = int(struct.unpack_from("<I", attr, 32)[0])
        if result < 0 and -result not in (errno.ENOENT, errno.ENOSPC):
            done = 0
        return max(0, -result), done


def map_freeze(fd: int) -> None:
    """Make a map read-only for user space: only then the verifier trusts its contents."""
    _bpf(Cmd.MAP_FREEZE, struct.pack("<I", fd))


def map_info(fd: int) -> MapInfo:
    """Describe a map."""
    buffer = ctypes.create_string_buffer(80)
    _bpf(Cmd.OBJ_GET_INFO_BY_FD, struct.pack("<IIQ", fd, 80, ctypes.addressof(buffer)))
    kind, ident, key_size, value_size, entries, flags, name = struct.unpack_from("<6I16s", buffer.raw)
    text = name.split(b"\0")[0].decode(errors="replace")
    return MapInfo(kind, ident, key_size, value_size, entries, flags, text)


def map_fd_by_id(ident: int) -> int:
    """Return a descriptor for a map id. Raises OSError ENOENT when the map is gone."""
    return _bpf(Cmd.MAP_GET_FD_BY_ID, struct.pack("<III", ident, 0, 0))


def prog_fd_by_id(ident: int) -> int:
    """Return a descriptor for a program id."""
    return _bpf(Cmd.PROG_GET_FD_BY_ID, struct.pack("<III", ident, 0, 0))


def obj_pin(fd: int, path: str) -> None:
    """Pin a map, program or link on a bpf file system. Raises OSError EEXIST when the path is taken."""
    raw = os.fsencode(path) + b"\0"
    _bpf(Cmd.OBJ_PIN, struct.pack("<QII", _pointer(raw), fd, 0), path)


def obj_get(path: str) -> int:
    """Return a descriptor for what is pinned at path. Raises OSError ENOENT."""
    raw = os.fsencode(path) + b"\0"
    return _bpf(Cmd.OBJ_GET, struct.pack("<QII", _pointer(raw), 0, 0), path)


@cache
def possible_cpus() -> int:
    """Return how many values a per-CPU entry has: the highest number a CPU may get, plus 1."""
    try:
        with open("/sys/devices/system/cpu/possible", encoding="ascii") as stream:
            last = stream.read().strip().split(",")[-1].split("-")[-1]
    except OSError:  # no sysfs: a sandbox, where no map is made
        return os.cpu_count() or 1
    return int(last) + 1
