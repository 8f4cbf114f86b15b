"""KernelMaps: the maps in the kernel, pinned, read and written in batches."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from lbagent.defaults import DEFAULT_BPFFS
from lbagent.errors import KernelError, LayoutMismatch, LbError, NotFound
from lbagent.kernel import bpf_map
from lbagent.kernel.bpfsys import ENOTSUPP
from lbagent.kernel.cpus import possible_cpus
from lbagent.kernel.kernel_error import kernel_error, kernel_errors
from lbagent.maps import mmap_window as windows
from lbagent.maps import pins
from lbagent.maps.backend_tcp import zero_of_counters
from lbagent.maps.event_layout import EVENT_MAP
from lbagent.maps.event_map import open_event_map
from lbagent.maps.layout import is_zero
from lbagent.maps.lbmaps import Item, TrafficCounter, map_full
from lbagent.maps.maglev_tables import MaglevTables
from lbagent.maps.specs import ADDED_MAPS, MapSpec, MapType, Sizes, counter_stripe_bytes, maglev_inner, map_specs

_NO_BATCH = (ENOTSUPP, errno.EINVAL, errno.EOPNOTSUPP)
_FULL = (errno.E2BIG, errno.ENOSPC)
_ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)


_EXCHANGES = 5  # retries while a resize renames its pins, one after the other


def _open_pins(bpffs: str | Path, sizes: Sizes | None) -> tuple[Sizes, dict[str, MapSpec], dict[str, int]]:
    """Open the pinned maps; without `sizes` with their own sizes, also while another process changes them."""
    for again in range(_EXCHANGES, 0, -1):
        found = sizes or pins.pinned_sizes(bpffs)
        specs = pins.all_specs(found)
        try:
            return found, specs, pins.open_pins(bpffs, specs)
        except LayoutMismatch:
            if sizes or again == 1:
                raise
    raise AssertionError


class KernelMaps:
    """LBMaps over the pinned maps; `open` makes one. `fds` are the maps' descriptors by name, for the loader's relocations."""

    def __init__(self, bpffs: str | Path, sizes: Sizes, fds: dict[str, int]) -> None:
        self.bpffs = Path(bpffs)
        self.sizes = sizes
        self.specs: dict[str, MapSpec] = {n: s for n, s in map_specs(sizes).items() if n in fds}
        self.fds = fds
        self.created: frozenset[str] = frozenset()  # created by `open`
        self._cpus = possible_cpus()
        inner = maglev_inner(sizes)
        tables = {name: MaglevTables(fds[name], inner) for name in ("lb4_maglev", "lb6_maglev")}
        self._tables: dict[str, MaglevTables] = {**tables}

    @classmethod
    def open(
        cls, bpffs: str | Path = DEFAULT_BPFFS, sizes: Sizes | None = None, *, create: bool = True, events: int = 0
    ) -> Self:
        """Open the pinned maps under BPFFS/v1, creating the missing ones.

        With `create` a bpf file system is mounted where there is none. Without it nothing is created: sizes None means "their
        own", and a missing map is NotFound. Every pin is compared with its spec, and the layout of the flow tables with this
        version's, before anything is created. `events`: open event rings of so many records, too, or make new ones, which
        event_map.py pins when programs use them. Raises LayoutMismatch, NotFound, KernelError.
        """
        if create:
            pins.ensure_pin_dir(bpffs)
            sizes = sizes or Sizes()
        pins.check_flow_layout(bpffs)
        found, specs, fds = _open_pins(bpffs, sizes)
        there = frozenset(fds)
        try:
            if create:
                pins.create_pins(bpffs, specs, fds)
            elif missing := next((name for name in specs if name not in fds and name not in ADDED_MAPS), None):
                raise NotFound(f"no map {missing} under {pins.pin_dir(bpffs)}: no agent has run with this --bpffs")
            if (rings := open_event_map(bpffs, events)) is not None:
                fds[EVENT_MAP] = rings
        except BaseException:
            pins.close_all(fds)
            raise
        maps = cls(bpffs, found, fds)
        maps.created = frozenset(fds) - there - {EVENT_MAP}
        return maps

    def replace(self, fds: Mapping[str, int], sizes: Sizes) -> None:
        """Use other maps under these names; the old descriptors are closed, the new ones belong to this object."""
        for name, fd in fds.items():
            os.close(self.fds[name])
            self.fds[name] = fd
        self.sizes = sizes
        self.specs = {name: spec for name, spec in map_specs(sizes).items() if name in self.fds}

    def close(self) -> None:
        """Close the descriptors; the pins keep the maps."""
        pins.close_all(self.fds)

    def __enter__(self) -> Self:
        """Return the maps."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close them."""
        self.close()

    def fd(self, map_name: str) -> int:
        """Return a map's descriptor; the caller must not close it."""
        return self.fds[map_name]

    # --- entries ---

    def put_many(self, map_name: str, items: Sequence[Item]) -> None:
        """Insert or replace entries in order. Raises MapFull or KernelError with `done`."""
        keys, values = b"".join([key for key, _ in items]), b"".join([value for _, value in items])
        self.put_batch(map_name, keys, values, 0, len(items))

    def put_batch(self, map_name: str, keys: bytes, values: bytes, start: int, stop: int) -> None:
        """Write entries start..stop of packed keys and values. Raises MapFull or KernelError with `done`."""
        spec, fd, at = self.specs[map_name], self.fds[map_name], start
        if stop - start > 1:
            result = bpf_map.map_update_batch(fd, keys, values, (spec.key_size, spec.value_size), start, stop)
            at += result.done
            if result.errno and result.errno not in _NO_BATCH:
                raise self._failed("update", map_name, result.errno, result.done)
        for i in range(at, stop):
            key, value = (
                keys[i * spec.key_size : (i + 1) * spec.key_size],
                values[i * spec.value_size : (i + 1) * spec.value_size],
            )
            try:
                bpf_map.map_update(fd, key, value)
            except OSError as error:
                raise self._failed("update", map_name, error.errno or 0, i - start) from None

    def _failed(self, op: str, map_name: str, number: int, done: int) -> LbError:
        limit = self.specs[map_name].max_entries
        error = map_full(map_name, limit, limit, number) if number in _FULL else kernel_error(op, number, map_name)
        if isinstance(error, KernelError):
            error.done = done
        return error

    def delete_many(self, map_name: str, keys: Sequence[bytes]) -> None:
        """Delete entries in order; missing keys are fine. Raises KernelError."""
        fd, count, joined = self.fds[map_name], len(keys), b"".join(keys)
        done = 0
        while done < count:
            result = bpf_map.map_delete_batch(fd, joined, len(keys[0]), done, count)
            done += result.done
            if result.errno == errno.ENOENT:
                done += 1  # the batch stops at a missing key
            elif result.errno in _NO_BATCH:
                with kernel_errors("delete", map_name):
                    for key in keys[done:]:
                        bpf_map.map_delete(fd, key)
                return
            elif result.errno:
                raise self._failed("delete", map_name, result.errno, done)

    def get(self, map_name: str, key: bytes) -> bytes | None:
        """Return the value of a key; for a per-CPU map the values of all CPUs, each padded to 8 bytes."""
        spec = self.specs[map_name]
        with kernel_errors("look up", map_name):
            return bpf_map.map_lookup(self.fds[map_name], key, self._value_bytes(spec))

    def _value_bytes(self, spec: MapSpec) -> int:
        if spec.type is MapType.PERCPU_ARRAY:
            return (spec.value_size + 7) // 8 * 8 * self._cpus
        return spec.value_size

    def items(self, map_name: str) -> list[Item]:
        """Return all entries; for an array those that are not all zero."""
        spec = self.specs[map_name]
        size = self._value_bytes(spec)
        zero = bytes(size) if spec.type in _ARRAYS else b""
        out: list[Item] = []
        for keys, values, count in self.batches(map_name):
            if zero and is_zero(values):
                continue
            split = [
                (keys[i * spec.key_size : (i + 1) * spec.key_size], values[i * size : (i + 1) * size])
                for i in range(count)
            ]
            out += [item for item in split if item[1] != zero]
        return out

    def batches(self, map_name: str) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield (packed keys, packed values, count). Raises KernelError."""
        spec, fd = self.specs[map_name], self.fds[map_name]
        size = self._value_bytes(spec)
        reader = bpf_map.BatchReader(fd, spec.key_size, size, min(8192, spec.max_entries))
        with kernel_errors("read", map_name):
            try:
                piece = reader.read()
            except OSError as error:
                if error.errno not in _NO_BATCH:
                    raise
                yield from self._one_by_one(fd, spec, size)
                return
            while piece[2]:
                yield piece
                piece = reader.read()

    def _one_by_one(self, fd: int, spec: MapSpec, size: int) -> Iterator[tuple[bytes, bytes, int]]:
        key = bpf_map.map_next_key(fd, None, spec.key_size)
        while key is not None:
            value = bpf_map.map_lookup(fd, key, size)
            if value is not None:
                yield key, value, 1
            key = bpf_map.map_next_key(fd, key, spec.key_size)

    # --- Maglev ---

    def set_maglev(self, map_name: str, tables: Mapping[int, bytes]) -> None:
        """Replace whole lookup tables by service id; equal ones share one inner map. Raises MapFull, KernelError."""
        size = 4 * self.sizes.maglev_size
        if any(len(table) != size for table in tables.values()):
            raise ValueError(f"{map_name}: a table has {size} bytes")
        try:
            self._tables[map_name].update(tables)
        except OSError as error:
            raise self._failed("update", map_name, error.errno or 0, 0) from None

    def delete_maglev(self, map_name: str, service_ids: Sequence[int]) -> None:
        """Remove tables; missing ones are ignored. Raises KernelError."""
        with kernel_errors("delete", map_name):
            self._tables[map_name].delete(service_ids)

    def maglev(self, map_name: str) -> dict[int, bytes]:
        """Return the table of each service id; equal tables are one object. Raises KernelError."""
        with kernel_errors("read", map_name):
            return self._tables[map_name].read()

    def maglev_ids(self, map_name: str) -> set[int]:
        """Return the service ids that have a table. Raises KernelError."""
        with kernel_errors("read", map_name):
            return self._tables[map_name].service_ids()

    # --- arrays as memory ---

    @contextmanager
    def window(self, map_name: str, offset: int, length: int) -> Iterator[memoryview]:
        """Map bytes of a mmapable array; stores take effect in the map at once. Raises KernelError, ValueError."""
        with ExitStack() as opened:
            with kernel_errors("mmap", map_name):  # does not cover the caller's block
                view = opened.enter_context(
                    windows.window(self.fds[map_name], offset, length, self.specs[map_name].value_size)
                )
            yield view

    def store(self, map_name: str, words: Iterable[tuple[int, bytes]]) -> None:
        """Store 8-byte words of a mmapable array in order, each by one aligned store. Raises KernelError."""
        with kernel_errors("mmap", map_name):
            windows.store(self.fds[map_name], words, self.specs[map_name].value_size)

    def store_parts(self, map_name: str, offset: int, stride: int, parts: bytes, width: int) -> None:
        """Store parts of records of a mmapable array, each word by one aligned store. Raises KernelError."""
        with kernel_errors("mmap", map_name):
            windows.store_parts(self.fds[map_name], offset, stride, parts, width, self.specs[map_name].value_size)

    # --- counters ---

    def counters(self, indexes: Sequence[int]) -> list[TrafficCounter]:
        """Return packets and bytes of lb_metrics indexes, summed over the CPUs. Raises KernelError."""
        with self.window("lb_metrics", 0, self.specs["lb_metrics"].value_size) as view:
            return windows.counters(view, counter_stripe_bytes(self.sizes), indexes)

    def zero_counters(self, indexes: Sequence[int]) -> None:
        """Set counters to zero. Raises KernelError."""
        fd, limit = self.fds["lb_metrics"], self.specs["lb_metrics"].value_size
        with kernel_errors("mmap", "lb_metrics"):
            windows.store_zero_counters(fd, counter_stripe_bytes(self.sizes), indexes, limit)
        zero_of_counters(self, indexes)
