"""MemoryMaps: LBMaps without a kernel, for dry runs and tests."""

from __future__ import annotations

import errno
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from lbagent.errors import KernelError
from lbagent.maps import mmap_window as windows
from lbagent.maps.lbmaps import GENERATION_MAPS, Item, TrafficCounter, map_full
from lbagent.maps.specs import F_MMAPABLE, MapSpec, MapType, Sizes, counter_stripe_bytes, map_specs

_ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)


class MemoryMaps:
    """LBMaps in this process. Limits and array semantics are the kernel's; a full LRU map raises where the kernel evicts."""

    def __init__(self, sizes: Sizes | None = None) -> None:
        self.sizes = sizes or Sizes()
        self.specs: dict[str, MapSpec] = {n: s for n, s in map_specs(self.sizes).items() if n not in GENERATION_MAPS}
        self._entries: dict[str, dict[bytes, bytes]] = {name: {} for name in self.specs}
        self._tables: dict[str, dict[int, bytes]] = {"lb4_maglev": {}, "lb6_maglev": {}}
        self._arrays: dict[str, mmap.mmap] = {}  # anonymous: pages that were never written cost nothing

    def put_many(self, map_name: str, items: Sequence[Item]) -> None:
        """Insert or replace entries in order. Raises MapFull with `done`."""
        spec, entries = self.specs[map_name], self._entries[map_name]
        for done, (key, value) in enumerate(items):
            if len(key) != spec.key_size or len(value) != spec.value_size:
                raise ValueError(f"{map_name}: entry of {len(key)}+{len(value)} bytes")
            full = struct.unpack("=I", key)[0] >= spec.max_entries if spec.type in _ARRAYS else (
                key not in entries and len(entries) >= spec.max_entries
            )  # fmt: skip
            if full:
                error = map_full(map_name, len(entries), spec.max_entries)
                error.done = done
                raise error
            entries[key] = value

    def put_batch(self, map_name: str, keys: bytes, values: bytes, start: int, stop: int) -> None:
        """Write entries start..stop of packed keys and values. Raises MapFull with `done`."""
        self.put_many(map_name, unpack_items(self.specs[map_name], keys, values, start, stop))

    def delete_many(self, map_name: str, keys: Sequence[bytes]) -> None:
        """Delete entries; missing keys are ignored."""
        if self.specs[map_name].type in _ARRAYS:
            raise KernelError("delete", errno.EINVAL, map_name)
        for key in keys:
            self._entries[map_name].pop(key, None)

    def get(self, map_name: str, key: bytes) -> bytes | None:
        """Return the value of a key."""
        spec = self.specs[map_name]
        found = self._entries[map_name].get(key)
        if found is None and spec.type in _ARRAYS and struct.unpack("=I", key)[0] < spec.max_entries:
            return bytes(spec.value_size)
        return found

    def items(self, map_name: str) -> list[Item]:
        """Return all entries; for an array those that are not all zero."""
        entries = self._entries[map_name].items()
        if self.specs[map_name].type in _ARRAYS:
            return sorted(item for item in entries if item[1].strip(b"\0"))
        return list(entries)

    def batches(self, map_name: str) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield (packed keys, packed values, count), for an array those that are not all zero."""
        if found := self.items(map_name):
            yield b"".join([key for key, _ in found]), b"".join([value for _, value in found]), len(found)

    def set_maglev(self, map_name: str, tables: Mapping[int, bytes]) -> None:
        """Replace whole lookup tables by service id."""
        if any(len(table) != 4 * self.sizes.maglev_size for table in tables.values()):
            raise ValueError(f"{map_name}: a table has {4 * self.sizes.maglev_size} bytes")
        shared = {table: table for table in self._tables[map_name].values()}
        self._tables[map_name].update({ident: shared.setdefault(table, table) for ident, table in tables.items()})

    def delete_maglev(self, map_name: str, service_ids: Sequence[int]) -> None:
        """Remove tables; missing ones are ignored."""
        for ident in service_ids:
            self._tables[map_name].pop(ident, None)

    def maglev(self, map_name: str) -> dict[int, bytes]:
        """Return the table of each service id."""
        return dict(self._tables[map_name])

    def maglev_ids(self, map_name: str) -> set[int]:
        """Return the service ids that have a table."""
        return set(self._tables[map_name])

    def _array(self, map_name: str) -> mmap.mmap:
        spec = self.specs[map_name]
        if not spec.flags & F_MMAPABLE:
            raise KernelError("mmap", errno.EINVAL, map_name)
        if map_name not in self._arrays:
            self._arrays[map_name] = mmap.mmap(-1, spec.value_size)
        return self._arrays[map_name]

    @contextmanager
    def window(self, map_name: str, offset: int, length: int) -> Iterator[memoryview]:
        """Map bytes of a mmapable array. Raises ValueError beyond it, KernelError on another map."""
        limit = self.specs[map_name].value_size
        if offset < 0 or length < 0 or offset + length > limit:
            raise ValueError(f"window {offset}+{length} is outside the {limit} bytes of {map_name}")
        yield memoryview(self._array(map_name))[offset : offset + length]

    def store(self, map_name: str, words: Iterable[tuple[int, bytes]]) -> None:
        """Store 8-byte words at their offsets, in order."""
        with memoryview(self._array(map_name)) as view:
            windows.store_words(view, 0, words)

    def store_parts(self, map_name: str, offset: int, stride: int, parts: bytes, width: int) -> None:
        """Store parts of records."""
        end = offset + windows.parts_span(parts, stride, width)
        with memoryview(self._array(map_name)) as view, view[offset:end] as span:
            windows.store_parts_in(span, stride, parts, width)

    def counters(self, indexes: Sequence[int]) -> list[TrafficCounter]:
        """Return packets and bytes of lb_metrics indexes."""
        with memoryview(self._array("lb_metrics")) as view:
            return windows.counters(view, counter_stripe_bytes(self.sizes), indexes)

    def zero_counters(self, indexes: Sequence[int]) -> None:
        """Set counters to zero."""
        with memoryview(self._array("lb_metrics")) as view:
            windows.zero_counters(view, counter_stripe_bytes(self.sizes), indexes)


def unpack_items(spec: MapSpec, keys: bytes, values: bytes, start: int, stop: int) -> list[Item]:
    """Return entries start..stop of packed keys and values."""
    k, v = spec.key_size, spec.value_size
    return [(bytes(keys[i * k : i * k + k]), bytes(values[i * v : i * v + v])) for i in range(start, stop)]
