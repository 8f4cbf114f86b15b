"""PinnedMaps: the maps in the kernel, read from their pins. Nothing is created or written; a map is opened when it is read.

Memory is mapped read-only. Linux maps no array behind a descriptor that is itself read-only (do_mmap() takes VM_SHARED from the
mapping, and bpf_map_mmap() requires it), so only maps that are not mapped are opened read-only. A reader that may not write a
pin gets a copy of the array instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from lbagent.errors import NotFound
from lbagent.kernel import bpf_map, bpfsys
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps import mmap_window as windows
from lbagent.maps import pins
from lbagent.maps.layout import is_zero
from lbagent.maps.lbmaps import Item
from lbagent.maps.specs import F_MMAPABLE, MapSpec, MapType, Sizes, map_specs

_ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)
_BATCH = 8192  # entries read at once


class PinnedMaps:
    """The maps under BPFFS/v1."""

    def __init__(self, bpffs: str | Path) -> None:
        """Read the sizes of the maps. Raises NotFound, LayoutMismatch, KernelError."""
        pins.check_flow_layout(bpffs)
        self.bpffs = Path(bpffs)
        self.sizes: Sizes = pins.pinned_sizes(bpffs)
        self.specs: dict[str, MapSpec] = map_specs(self.sizes)
        self._fds: dict[str, int] = {}
        self._read_only: set[str] = set()  # arrays that may be read but not mapped: their pin must not be written
        self._copies: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        """Return the maps."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the descriptors."""
        pins.close_all(self._fds)

    def has(self, map_name: str) -> bool:
        """Return whether the map is pinned: an earlier version may lack one of ADDED_MAPS."""
        return map_name in self._fds or (pins.pin_dir(self.bpffs) / map_name).exists()

    def get(self, map_name: str, key: bytes) -> bytes | None:
        """Return the value of a key. Raises NotFound, LayoutMismatch, KernelError."""
        fd = self._fd(map_name)
        with kernel_errors("look up", map_name):
            return bpf_map.map_lookup(fd, key, self.specs[map_name].value_size)

    def settings_record(self) -> bytes:
        """Return the record of lb_config, in the length that its version has; b"" if no programs are pinned. Raises KernelError."""
        path = pins.pin_dir(self.bpffs) / "lb_config"
        with kernel_errors("read", str(path)):
            try:
                fd = bpfsys.obj_get(str(path), read_only=True)
            except FileNotFoundError:
                return b""
            try:
                return bpf_map.map_lookup(fd, bytes(4), bpf_map.map_info(fd).value_size) or b""
            finally:
                os.close(fd)

    def items(self, map_name: str) -> list[Item]:
        """Return all entries of a map that is no per-CPU map; for an array those that are not all zero. Raises as `get`."""
        spec, fd = self.specs[map_name], self._fd(map_name)
        is_array = spec.type in _ARRAYS
        key_size, size = spec.key_size, spec.value_size
        reader = bpf_map.BatchReader(fd, key_size, size, min(_BATCH, spec.max_entries))
        out: list[Item] = []
        with kernel_errors("read", map_name):
            while (piece := reader.read())[2]:
                keys, values, count = piece
                for at in range(count):
                    value = values[at * size : (at + 1) * size]
                    if not (is_array and is_zero(value)):
                        out.append((keys[at * key_size : (at + 1) * key_size], value))
        return out

    @contextmanager
    def window(self, map_name: str, offset: int, length: int) -> Iterator[memoryview]:
        """Map bytes of a mmapable array, read-only. Raises as `get`, and ValueError beyond the array.

        Without the right to write the pin, the bytes are those of one copy of the whole array.
        """
        fd, size = self._fd(map_name), self.specs[map_name].value_size
        if map_name in self._read_only:
            if offset < 0 or length < 0 or offset + length > size:
                raise ValueError(f"window {offset}+{length} is outside the {size} bytes of the map")
            if map_name not in self._copies:
                self._copies[map_name] = self.get(map_name, bytes(4)) or bytes(size)
            yield memoryview(self._copies[map_name])[offset : offset + length]
            return
        with ExitStack() as opened:
            with kernel_errors("mmap", map_name):  # does not cover the caller's block
                view = opened.enter_context(windows.window(fd, offset, length, size, writable=False))
            yield view

    def _open(self, map_name: str, path: str, *, read_only: bool) -> int:
        try:
            return bpfsys.obj_get(path, read_only=read_only)
        except PermissionError:
            if read_only:
                raise
            fd = bpfsys.obj_get(path, read_only=True)
            self._read_only.add(map_name)
            return fd

    def _fd(self, map_name: str) -> int:
        if map_name not in self._fds:
            spec, path = self.specs[map_name], pins.pin_dir(self.bpffs) / map_name
            with kernel_errors("open", str(path)):
                try:
                    fd = self._open(map_name, str(path), read_only=not spec.flags & F_MMAPABLE)
                except FileNotFoundError:
                    raise NotFound(
                        f"no map {map_name} under {path.parent}: no agent has run with this --bpffs"
                    ) from None
            try:
                pins.check_map(fd, spec, path)
            except BaseException:
                os.close(fd)
                raise
            self._fds[map_name] = fd
        return self._fds[map_name]
