"""The map of the event rings in the kernel: made, pinned, replaced where its number of records has changed (event_layout.py)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lbagent.errors import KernelError, LayoutMismatch
from lbagent.kernel import bpf_map, bpfsys
from lbagent.kernel import bpffs as pinning
from lbagent.kernel.cpus import possible_cpus
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps import mmap_window, pins
from lbagent.maps.event_layout import (
    EVENT_BYTES,
    EVENT_HEAD_GENERATION,
    EVENT_HEAD_LIMITED,
    EVENT_HEAD_WRITTEN,
    EVENT_MAP,
    events_bytes,
    ring_slots,
)
from lbagent.maps.specs import F_MMAPABLE, MapSpec, MapType


def event_map(events: int) -> MapSpec:
    """Return the specification for so many records of all rings, more than 0."""
    rings = possible_cpus()
    return MapSpec(EVENT_MAP, MapType.ARRAY, 4, events_bytes(ring_slots(events, rings), rings), 1, F_MMAPABLE)


def open_event_map(bpffs: str | Path, events: int) -> int | None:
    """Return a descriptor of the rings: the pinned ones, or new ones that are not pinned yet if those do not fit; 0 events: None.

    Raises KernelError.
    """
    if not events:
        return None
    spec, path = event_map(events), pins.pin_dir(bpffs) / EVENT_MAP
    try:
        fd = bpfsys.obj_get(str(path))
    except OSError:  # none, or a foreign file
        return pins.create_map(spec)
    try:
        pins.check_map(fd, spec, path)
    except (LayoutMismatch, KernelError):  # another number of records, or of an earlier version
        os.close(fd)
        return pins.create_map(spec)
    return fd


def pin_event_map(bpffs: str | Path, fd: int | None) -> None:
    """Pin these rings in the place of those that are pinned, or (None) remove the pin. May be repeated. Raises KernelError."""
    path = pins.pin_dir(bpffs) / EVENT_MAP
    with kernel_errors("replace", str(path)):
        if fd is None:
            path.unlink(missing_ok=True)
            return
        if _is_pinned(path, fd):
            return
        stage = path.with_name(f"{EVENT_MAP}_new")
        stage.unlink(missing_ok=True)
        pinning.pin(fd, stage)
        stage.rename(path)


def _is_pinned(path: Path, fd: int) -> bool:
    try:
        other = bpfsys.obj_get(str(path))
    except OSError:
        return False
    try:
        return bpfsys.same_object(fd, other)
    finally:
        os.close(other)


def store_generation(fd: int, generation: int) -> None:
    """Write the generation of the State in force into every ring. Raises KernelError."""
    with kernel_errors("mmap", EVENT_MAP):
        for words in _heads(fd, writable=True):
            words[EVENT_HEAD_GENERATION] = generation & 0xFFFFFFFF


def event_counts(fd: int) -> tuple[int, int]:
    """Return how many events were recorded since the map was made, and how many --event-rate left out. Raises KernelError."""
    with kernel_errors("mmap", EVENT_MAP):
        heads = [(words[EVENT_HEAD_WRITTEN], words[EVENT_HEAD_LIMITED]) for words in _heads(fd)]
    return sum(written for written, _ in heads), sum(limited for _, limited in heads)


def _heads(fd: int, *, writable: bool = False) -> Iterator[memoryview]:
    """Yield the head of each ring as words."""
    rings, limit = possible_cpus(), bpf_map.map_info(fd).value_size
    for ring in range(rings):
        at = ring * (limit // rings)
        with mmap_window.window(fd, at, EVENT_BYTES, limit, writable=writable) as view, view.cast("Q") as words:
            yield words
