"""Maglev tables in a map of maps: one shared inner map per distinct table, replaced as a whole.

An outer update waits for an RCU grace period (8-14 ms); a batch waits once for all of them, where the kernel has it (6.1).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence

from lbagent.kernel import bpf_map
from lbagent.kernel.bpfsys import ENOTSUPP
from lbagent.maps.pins import create_map
from lbagent.maps.specs import MapSpec

_INDEX0 = bytes(4)
MAX_OPEN_TABLES = 512  # inner maps open at a time: each is a descriptor until the outer map holds it


class MaglevTables:
    """The tables of one lb{4,6}_maglev: `outer_fd` is the map of maps, `inner` the spec of one table."""

    def __init__(self, outer_fd: int, inner: MapSpec) -> None:
        self._outer = outer_fd
        self._inner = inner
        self._ids: dict[bytes, int] = {}  # digest of a table -> id of the inner map that held it

    def update(self, tables: Mapping[int, bytes]) -> None:
        """Replace a table for each service id. Raises OSError."""
        ids = list(tables)
        for start in range(0, len(ids), MAX_OPEN_TABLES):
            part = ids[start : start + MAX_OPEN_TABLES]
            with self._open_inner({tables[i] for i in part}) as fds:
                self._write(part, [fds[tables[i]] for i in part])

    def _write(self, ids: Sequence[int], fds: Sequence[int]) -> None:
        keys, values = struct.pack(f"={len(ids)}I", *ids), struct.pack(f"={len(fds)}I", *fds)
        result = bpf_map.map_update_batch(self._outer, keys, values, (4, 4), 0, len(ids))
        if result.errno in (ENOTSUPP, errno.EINVAL):  # no batch for maps of maps before 6.1
            for ident, fd in zip(ids, fds, strict=True):
                bpf_map.map_update(self._outer, struct.pack("=I", ident), struct.pack("=I", fd))
        elif result.errno:
            raise OSError(result.errno, os.strerror(result.errno))

    @contextlib.contextmanager
    def _open_inner(self, tables: set[bytes]) -> Iterator[dict[bytes, int]]:
        """Yield a descriptor of a filled inner map for each table; the outer map keeps the inner maps alive."""
        fds: dict[bytes, int] = {}
        try:
            for table in tables:
                fds[table] = self._inner_fd(table)
            yield fds
        finally:
            for fd in fds.values():
                os.close(fd)

    def _inner_fd(self, table: bytes) -> int:
        digest = _digest(table)
        with contextlib.suppress(OSError):  # removed with its last service
            if digest in self._ids:
                return bpf_map.map_fd_by_id(self._ids[digest])
        fd = create_map(self._inner)
        try:
            bpf_map.map_update(fd, _INDEX0, table)
            self._ids[digest] = bpf_map.map_info(fd).id
        except BaseException:
            os.close(fd)
            raise
        return fd

    def delete(self, ids: Sequence[int]) -> None:
        """Remove tables. Raises OSError."""
        for ident in ids:
            bpf_map.map_delete(self._outer, struct.pack("=I", ident))

    def service_ids(self) -> set[int]:
        """Return the service ids that have a table. Raises OSError."""
        out: set[int] = set()
        key = bpf_map.map_next_key(self._outer, None, 4)
        while key is not None:
            out.add(struct.unpack("=I", key)[0])
            key = bpf_map.map_next_key(self._outer, key, 4)
        return out

    def read(self) -> dict[int, bytes]:
        """Return every service's table; equal tables are one object. Raises OSError."""
        by_inner: dict[int, bytes] = {}
        out: dict[int, bytes] = {}
        key = bpf_map.map_next_key(self._outer, None, 4)
        while key is not None:
            value = bpf_map.map_lookup(self._outer, key, 4)
            if value is not None:
                inner = struct.unpack("=I", value)[0]
                if inner not in by_inner:
                    by_inner[inner] = self._read_inner(inner)
                out[struct.unpack("=I", key)[0]] = by_inner[inner]
            key = bpf_map.map_next_key(self._outer, key, 4)
        return out

    def _read_inner(self, ident: int) -> bytes:
        fd = bpf_map.map_fd_by_id(ident)
        try:
            table = bpf_map.map_lookup(fd, _INDEX0, self._inner.value_size) or b""
        finally:
            os.close(fd)
        self._ids[_digest(table)] = ident
        return table


def _digest(table: bytes) -> bytes:
    return hashlib.blake2b(table, digest_size=16).digest()
