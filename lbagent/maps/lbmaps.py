"""LBMaps: the interface to the maps, in the kernel (kernel_maps.py) or in Python (memory_maps.py)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from lbagent.errors import MapFull
from lbagent.maps.layout import CALL_MAPS, METRIC_BACKEND, METRIC_SERVICE
from lbagent.maps.specs import MapSpec, Sizes

Item = tuple[bytes, bytes]  # key, value
TrafficCounter = tuple[int, int]  # packets, bytes


# Maps of one program generation: settings, constants and tail calls. Created, filled and pinned with the programs
# (bpf/load/generation.py).
GENERATION_MAPS = ("lb_config", "lb_crc32c", *CALL_MAPS)


class LBMaps(Protocol):
    """All maps of map_specs except GENERATION_MAPS. layout.py packs keys and values; an array map's key is its u32 index.

    Raises MapFull or KernelError; the error of a put has in `done` the number of written entries of the call.
    """

    sizes: Sizes
    specs: dict[str, MapSpec]

    def put_many(self, map_name: str, items: Sequence[Item]) -> None:
        """Insert or replace entries, in order, by batch."""

    def put_batch(self, map_name: str, keys: bytes, values: bytes, start: int, stop: int) -> None:
        """Write entries start..stop of packed keys and values: `put_many` without an object per entry."""

    def delete_many(self, map_name: str, keys: Sequence[bytes]) -> None:
        """Delete entries, in order, by batch; missing keys are ignored."""

    def get(self, map_name: str, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def items(self, map_name: str) -> list[Item]:
        """Return all entries; for an array those that are not all zero."""

    def batches(self, map_name: str) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield (packed keys, packed values, count): `items` without an object per entry, zeros included."""

    def set_maglev(self, map_name: str, tables: Mapping[int, bytes]) -> None:
        """Replace whole lookup tables (u32 backend ids) by service id; equal tables may share one inner map."""

    def delete_maglev(self, map_name: str, service_ids: Sequence[int]) -> None:
        """Remove tables; missing ones are ignored."""

    def maglev(self, map_name: str) -> dict[int, bytes]:
        """Return the lookup table of each service id; equal tables are one object."""

    def maglev_ids(self, map_name: str) -> set[int]:
        """Return the service ids that have a lookup table; no table is read."""

    def window(self, map_name: str, offset: int, length: int) -> AbstractContextManager[memoryview]:
        """Map `length` bytes of a mmapable array; stores through it take effect in the map at once."""

    def store(self, map_name: str, words: Iterable[tuple[int, bytes]]) -> None:
        """Store (offset, 8 bytes) words of a mmapable array in order, each by one aligned store that no program sees torn."""

    def store_parts(self, map_name: str, offset: int, stride: int, parts: bytes, width: int) -> None:
        """Store packed parts of `width` bytes at offset, offset + stride, ...: `store` without an object per word."""

    def counters(self, indexes: Sequence[int]) -> list[TrafficCounter]:
        """Return packets and bytes of lb_metrics indexes, summed over the CPUs."""

    def zero_counters(self, indexes: Sequence[int]) -> None:
        """Set counters to zero: an id that another service or backend gets starts at zero."""


# The option that sizes a map, which a MapFull recommends to raise.
SIZE_OPTION = {
    "lb4_service": "--max-service-slots",
    "lb6_service": "--max-service-slots",
    "lb_affinity_match": "--max-service-slots",
    "lb4_backend": "--max-backends",
    "lb6_backend": "--max-backends",
    "lb4_path": "--max-backends",
    "lb6_path": "--max-backends",
    "lb4_source_range": "--max-source-ranges",
    "lb6_source_range": "--max-source-ranges",
    "lb4_affinity": "--max-affinities",
    "lb6_affinity": "--max-affinities",
    "lb4_spill": "--max-spilled-flows",
    "lb6_spill": "--max-spilled-flows",
    "lb4_left": "--max-spilled-flows",
    "lb6_left": "--max-spilled-flows",
    "lb4_frag": "--max-fragments",
    "lb6_frag": "--max-fragments",
    "lb4_flow": "--flow-table-size",
    "lb6_flow": "--flow6-table-size",
    "lb4_snat": "--snat-table-size",
    "lb6_snat": "--snat6-table-size",
    "lb_metrics": "--max-backends",
    "lb_live": "--max-backends",
    "lb_closing": "--max-backends",
    "lb_tcp": "--max-backends",
    "lb_backend_flows": "--max-backends",
    "lb_swept": "--max-backends",
    "lb_maglev_inner": "--maglev-table-size",
}


def map_full(
    map_name: str,
    used: int,
    limit: int,
    errno: int = 7,
    *,
    needed: int = 0,
    kept: str = "everything already written keeps serving",
) -> MapFull:
    """Return the error of a full map: which, how full, what to raise, what is kept. `errno` defaults to E2BIG."""
    more = f", {needed} more needed" if needed else ""
    option = SIZE_OPTION.get(map_name, "")
    advice = f"raise {option}; " if option else ""
    return MapFull(
        "insert",
        errno,
        map_name,
        f"{used} of {limit} entries used{more}; {advice}{kept}",
    )


def service_counter(service_id: int) -> int:
    """Return the lb_metrics index of a service."""
    return METRIC_SERVICE + service_id


def backend_counter(backend_id: int) -> int:
    """Return the lb_metrics index of a backend."""
    return METRIC_BACKEND + backend_id
