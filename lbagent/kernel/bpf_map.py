"""BPF maps: create, read, write, single entries or batches. Raises OSError (kernel/bpfsys.py)."""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from lbagent.kernel.bpfsys import (
    BPF_OBJ_NAME_LEN,
    ENOTSUPP,
    Buffer,
    Cmd,
    bpf,
    call,
    fd_by_id,
    obj_info,
    os_error,
    pointer,
)


class MapInfo(NamedTuple):
    """struct bpf_map_info, the part that is compared."""

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


def map_create(
    kind: int, key_size: int, value_size: int, max_entries: int, flags: int = 0, name: str = "", inner_fd: int = 0
) -> int:
    """Create a map; `inner_fd` is the template of a map of maps."""
    # type, key_size, value_size, max_entries, flags, inner_map_fd, numa_node, name
    raw_name = name.encode()[: BPF_OBJ_NAME_LEN - 1]
    attr = struct.pack("<IIIIIII16s", kind, key_size, value_size, max_entries, flags, inner_fd, 0, raw_name)
    return bpf(Cmd.MAP_CREATE, attr, name)


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return the value of a key, None if there is none. `value_bytes` counts all CPUs of a per-CPU map."""
    value = ctypes.create_string_buffer(value_bytes)
    attr = struct.pack("<IIQQQ", fd, 0, pointer(key), ctypes.addressof(value), 0)
    result = call(Cmd.MAP_LOOKUP_ELEM, ctypes.create_string_buffer(attr, 32), 32)
    if result < 0:
        if result == -errno.ENOENT:
            return None
        raise os_error(-result)
    return value.raw


def map_update(fd: int, key: bytes, value: bytes, flags: int = 0) -> None:
    """Insert or replace one entry."""
    bpf(Cmd.MAP_UPDATE_ELEM, struct.pack("<IIQQQ", fd, 0, pointer(key), pointer(value), flags))


def map_delete(fd: int, key: bytes) -> bool:
    """Delete one entry; return whether it existed."""
    attr = struct.pack("<IIQQQ", fd, 0, pointer(key), 0, 0)
    result = call(Cmd.MAP_DELETE_ELEM, ctypes.create_string_buffer(attr, 32), 32)
    if result < 0 and result != -errno.ENOENT:
        raise os_error(-result)
    return result == 0


def map_next_key(fd: int, key: bytes | None, key_size: int) -> bytes | None:
    """Return the key after `key` (the first after None), None at the end."""
    out = ctypes.create_string_buffer(key_size)
    attr = struct.pack("<IIQQQ", fd, 0, pointer(key) if key is not None else 0, ctypes.addressof(out), 0)
    result = call(Cmd.MAP_GET_NEXT_KEY, ctypes.create_string_buffer(attr, 32), 32)
    if result < 0:
        if result == -errno.ENOENT:
            return None
        raise os_error(-result)
    return out.raw


def _batch(cmd: Cmd, fd: int, keys: int, values: int, count: int) -> Batch:
    # in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
    attr = ctypes.create_string_buffer(struct.pack("<QQQQIIQQ", 0, 0, keys, values, count, fd, 0, 0), 56)
    result = call(cmd, attr, 56)
    if result >= 0:
        return Batch(count, 0)
    done = struct.unpack_from("<I", attr, 32)[0]
    # a kernel that rejects the operation before it starts leaves the count unchanged
    return Batch(0 if -result in (ENOTSUPP, errno.EINVAL, errno.EPERM) else done, -result)


def map_update_batch(fd: int, keys: bytes, values: bytes, sizes: tuple[int, int], start: int, stop: int) -> Batch:
    """Write entries start..stop of packed keys and values; `sizes` are those of a key and a value."""
    at_key, at_value = pointer(keys) + sizes[0] * start, pointer(values) + sizes[1] * start
    return _batch(Cmd.MAP_UPDATE_BATCH, fd, at_key, at_value, stop - start)


def map_delete_batch(fd: int, keys: bytes, key_size: int, start: int, stop: int) -> Batch:
    """Delete keys start..stop; stops with ENOENT at the first missing one."""
    return _batch(Cmd.MAP_DELETE_BATCH, fd, pointer(keys) + key_size * start, 0, stop - start)


class BatchReader:
    """Reads a map by LOOKUP_BATCH; `read` returns packed keys, packed values and their count, 0 at the end.

    A batch holds `room` entries, more when a bucket of a hash map needs it.
    """

    def __init__(self, fd: int, key_size: int, value_bytes: int, room: int = 8192) -> None:
        self._fd, self._key_size, self._value_bytes, self._room = fd, key_size, value_bytes, room
        self._position = ctypes.create_string_buffer(max(key_size, 8))
        self._started = self._ended = False

    def read(self) -> tuple[bytes, bytes, int]:
        """Return the next batch. Raises OSError with ENOTSUPP or EINVAL on a map without the operation."""
        while not self._ended:
            keys = ctypes.create_string_buffer(self._room * self._key_size)
            values = ctypes.create_string_buffer(self._room * self._value_bytes)
            error, count = self._step(keys, values)
            if error == errno.ENOSPC and not count:
                self._room *= 2
                continue
            if error not in (0, errno.ENOENT, errno.ENOSPC):
                raise os_error(error)
            self._started, self._ended = True, error == errno.ENOENT
            if count:
                return keys.raw[: count * self._key_size], values.raw[: count * self._value_bytes], count
        return b"", b"", 0

    def _step(self, keys: Buffer, values: Buffer) -> tuple[int, int]:
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
    """Make a map read-only for user space: the verifier trusts only the contents of such a map."""
    bpf(Cmd.MAP_FREEZE, struct.pack("<I", fd))


def map_info(fd: int) -> MapInfo:
    """Describe a map."""
    kind, ident, key_size, value_size, entries, flags, name = struct.unpack_from("<6I16s", obj_info(fd, 80))
    text = name.split(b"\0")[0].decode(errors="replace")
    return MapInfo(kind, ident, key_size, value_size, entries, flags, text)


def map_fd_by_id(ident: int) -> int:
    """Return a descriptor for a map id. Raises OSError ENOENT when the map is gone."""
    return fd_by_id(Cmd.MAP_GET_FD_BY_ID, ident)
