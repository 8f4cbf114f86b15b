"""What flows tell about backends and services: results of timed TCP handshakes by backend id, new flows by service id.

The programs write lb_handshake, lb_tcp and lb_new_flows (bpf/include/flow/handshake.h); layout.py has their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lbagent.maps.layout import (
    HANDSHAKE_BACKEND_MASK,
    HANDSHAKE_BOUNDS,
    HANDSHAKE_CLIENT_SHIFT,
    HANDSHAKE_LOST_NS,
    HANDSHAKE_REPEATED,
    HANDSHAKE_SERVICE_SHIFT,
    HANDSHAKES,
    LB_HANDSHAKE,
    LB_TCP,
    METRIC_BACKEND,
    METRIC_SERVICE,
    SERVICE_IDS,
    U32,
)
from lbagent.maps.mmap_window import runs_of
from lbagent.model.handshakes import Handshakes

if TYPE_CHECKING:
    from lbagent.maps.lbmaps import LBMaps

_ZERO_RECORDS = 1 << 13  # mapped at a time
FAILS = 3  # handshakes in a row that were not done: the backend is reported
_LOST_AT, _FAILING_AT = (LB_TCP.offsets()[name] for name in ("lost", "failing"))
_BUCKETS_AT = [name for name, _ in LB_TCP.fields].index("le_0")


def read_handshakes(maps: LBMaps, idents: Sequence[int]) -> list[Handshakes]:
    """Return the results of backend ids. Raises KernelError."""
    if not idents:
        return []
    first, size = min(idents), LB_TCP.size
    with maps.window("lb_tcp", first * size, (max(idents) + 1 - first) * size) as view:
        rows = [LB_TCP.unpack(view[(ident - first) * size : (ident - first + 1) * size]) for ident in idents]
    return [_record(row) for row in rows]


def _record(row: Sequence[int | bytes]) -> Handshakes:
    numbers = [int(word) for word in row[: _BUCKETS_AT + HANDSHAKE_BOUNDS + 1] if isinstance(word, int)]
    return Handshakes(tuple(numbers[_BUCKETS_AT:]), *numbers[:_BUCKETS_AT])


def count_lost(maps: LBMaps, now_ns: int) -> int:
    """Count the handshakes without an answer for HANDSHAKE_LOST_NS and remove them; return how many. `now_ns`: CLOCK_MONOTONIC.

    Raises KernelError.
    """
    before, words = now_ns - HANDSHAKE_LOST_NS, LB_HANDSHAKE.size // 8
    with maps.window("lb_handshake", 0, HANDSHAKES * LB_HANDSHAKE.size) as view, view.cast("Q") as cells:
        with cells[1::words] as column:
            began = column.tolist()
        if not any(began):
            return 0
        over = [n for n, at in enumerate(began) if at and at < before]
        backends = [cells[n * words + 2] & HANDSHAKE_BACKEND_MASK for n in over]
        for n in over:
            cells[n * words + 1] = 0
    for ident in backends:
        with maps.window("lb_tcp", ident * LB_TCP.size, LB_TCP.size) as record:
            for at in (_LOST_AT, _FAILING_AT):
                U32.pack_into(record, at, int(U32.unpack_from(record, at)[0]) + 1)
    return len(over)


class RepeatedHandshake(NamedTuple):
    """A handshake that waits since its SYN was repeated; `client`: 26 bits of a hash of its address."""

    number: int
    began_ns: int
    backend: int
    service: int
    client: int


def repeated(maps: LBMaps) -> list[RepeatedHandshake]:
    """Return the handshakes that wait since their SYN was repeated. Raises KernelError."""
    words = LB_HANDSHAKE.size // 8
    with maps.window("lb_handshake", 0, HANDSHAKES * LB_HANDSHAKE.size) as view, view.cast("Q") as cells:
        with cells[2::words] as column:
            owners = column.tolist()
        found = [n for n, owner in enumerate(owners) if owner & HANDSHAKE_REPEATED]
        rows = [(cells[n * words], cells[n * words + 1], owners[n]) for n in found]
    return [
        RepeatedHandshake(
            number,
            began,
            owner & HANDSHAKE_BACKEND_MASK,
            owner >> HANDSHAKE_SERVICE_SHIFT & (SERVICE_IDS - 1),
            (owner ^ HANDSHAKE_REPEATED) >> HANDSHAKE_CLIENT_SHIFT,
        )
        for number, began, owner in rows
        if began
    ]


def failing(maps: LBMaps) -> dict[int, int]:
    """Return how many handshakes in a row failed, of the backend ids with at least FAILS. Some milliseconds. Raises KernelError."""
    with maps.window("lb_tcp", 0, maps.specs["lb_tcp"].value_size) as view, view.cast("I") as cells:
        column = cells[_FAILING_AT // 4 :: LB_TCP.size // 4]
        counts = column.tolist()
        column.release()
    return {ident: count for ident, count in enumerate(counts) if count >= FAILS} if max(counts) >= FAILS else {}


def read_new_flows(maps: LBMaps, services: Sequence[int]) -> list[int]:
    """Return the new flows of service ids, summed over the CPUs. Raises KernelError."""
    if not services:
        return []
    first, end = min(services), max(services) + 1
    total = [0] * (end - first)
    for stripe in _stripes(maps):
        with maps.window("lb_new_flows", stripe + first * 8, (end - first) * 8) as view, view.cast("Q") as cells:
            total = [a + b for a, b in zip(total, cells.tolist(), strict=True)]
    return [total[ident - first] for ident in services]


def zero_of_counters(maps: LBMaps, indexes: Iterable[int]) -> None:
    """Forget what is known of the services and backends whose counters have these indexes in lb_metrics. Raises KernelError."""
    for first, end in runs_of(indexes):
        backends = max(first, METRIC_BACKEND) - METRIC_BACKEND, end - METRIC_BACKEND
        _zero(maps, "lb_tcp", [0], LB_TCP.size, backends)
        services = max(first, METRIC_SERVICE) - METRIC_SERVICE, min(end, METRIC_BACKEND) - METRIC_SERVICE
        _zero(maps, "lb_new_flows", _stripes(maps), 8, services)


def _zero(maps: LBMaps, name: str, bases: Sequence[int], size: int, run: tuple[int, int]) -> None:
    """Set records first..end of `size` bytes behind each base to zero, some thousand at a time."""
    for at in range(run[0], run[1], _ZERO_RECORDS):
        count = min(_ZERO_RECORDS, run[1] - at)
        for base in bases:
            with maps.window(name, base + at * size, count * size) as view:
                view[:] = bytes(count * size)


def _stripes(maps: LBMaps) -> range:
    """Return where the stripes of lb_new_flows begin."""
    return range(0, maps.specs["lb_new_flows"].value_size, SERVICE_IDS * 8)
