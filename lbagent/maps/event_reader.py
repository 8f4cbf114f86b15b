"""Reads the event rings (event_layout.py) from their pin, while programs write them. Changes nothing, and needs no agent.

A ring is read without a lock: its programs overwrite the oldest record. A copy of records is valid as far as the number of written
records, read again after the copy, shows that none of them was being overwritten; and each has its own number.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from msgspec import Struct

from lbagent.errors import LayoutMismatch, NotFound
from lbagent.kernel import bpf_map, bpfsys, jiffies
from lbagent.kernel.cpus import possible_cpus
from lbagent.kernel.kernel_error import kernel_errors
from lbagent.maps import pins
from lbagent.maps.event_layout import (
    EVENT_AFTER_SHIFT,
    EVENT_BYTES,
    EVENT_FRAME_AT,
    EVENT_FRAME_BYTES,
    EVENT_GENERATION_SHIFT,
    EVENT_HEAD_LIMITED,
    EVENT_HEAD_WRITTEN,
    EVENT_HOOK_SHIFT,
    EVENT_KEPT_SHIFT,
    EVENT_KNOWN_SHIFT,
    EVENT_LENGTH_SHIFT,
    EVENT_MAP,
    EVENT_REASON_SHIFT,
    EVENT_SERVICE_SHIFT,
    EVENT_SNAT_PORT_SHIFT,
    slots_of,
)
from lbagent.maps.specs import F_MMAPABLE, MapType

_WORDS = struct.Struct("=4Q")
_CLOCK_S = 10.0  # seconds after which the clocks are compared again: one drifts beside the other


class Event(Struct, frozen=True, gc=False):
    """One record. Ids and the port are 0 where the verdict was made before they were known."""

    time: float  # Unix time, seconds; exact to some milliseconds
    cpu: int
    number: int  # of the record on its CPU, lowest 32 bits
    generation: int  # of the State in force, lowest 32 bits
    device: int  # index
    length: int  # bytes of the frame
    reason: int  # Reason
    hook: int  # EventHook
    backend: int  # id
    service: int  # id
    snat_port: int
    frame: bytes  # the first bytes of the frame as it arrived, at most 96, without payload
    is_known: bool = False  # a packet of a flow that there was: recorded only while a reader requests all packets
    is_after: bool = False  # it is the frame as it leaves, of the record before on this CPU; device 0: the stack has it


class EventReader:
    """The events of a pin. `lost`: records that were overwritten before they were read; `limited`: those --event-rate left out."""

    def __init__(self, bpffs: str | Path, *, last: int | None = 0) -> None:
        """Open the pin; the first `read` begins with the `last` events of all CPUs, or (None) with all that are there.

        Raises NotFound without a pin (no agent has run, or with --events 0), LayoutMismatch for a foreign one, KernelError.
        """
        self._path = pins.pin_dir(bpffs) / EVENT_MAP
        self.lost = 0
        self._limited_before = 0  # of maps that were replaced
        self._clock = _Clock()
        self._rings = _Rings.open(self._path)
        self._limited_at_start = self._rings.limited()
        self._overwritten_at_start = self._rings.overwritten()
        self._first: list[Event] = []
        if last is None:
            return
        if last:
            self._first = sorted(self._collect(), key=_time)[-last:]
            self.lost = 0
        else:
            self._rings.skip()

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Unmap the rings."""
        self._rings.close()

    @property
    def limited(self) -> int:
        """Events since the reader was opened that --event-rate left out: they have no record."""
        return self._limited_before + self._rings.limited() - self._limited_at_start

    @property
    def missed(self) -> int:
        """Events since the rings were made that a reader of all of them (`last` None) does not return: overwritten, or limited."""
        return self._overwritten_at_start + self.lost + self._limited_at_start + self.limited

    def read(self) -> list[Event]:
        """Return the events since the last call, of all CPUs in the order of time.

        If the agent has replaced the pin (--events has another number), the rest of the old map comes first. While there is no pin,
        the map that was there is read. Raises LayoutMismatch if the pin is a foreign one now, KernelError.
        """
        found, self._first = self._first, []
        found += sorted(self._collect(), key=_time)
        if self._rings.is_replaced(self._path):
            try:
                new = _Rings.open(self._path)
            except NotFound:
                return found
            except BaseException:
                self._first = found
                raise
            if new.map_id == self._rings.map_id:  # another pin of the same map
                self._rings.inode = new.inode
                new.close()
                return found
            self._limited_before += self._rings.limited() - self._limited_at_start
            self._limited_at_start = 0
            self._rings.close()
            self._rings = new
            found += sorted(self._collect(), key=_time)
        return found

    def _collect(self) -> list[Event]:
        self._clock.refresh()
        found: list[Event] = []
        for cpu in range(self._rings.count):
            lost, records = self._rings.take(cpu)
            self.lost += lost
            found += _events(records, cpu, self._clock)
        return found


def _time(event: Event) -> float:
    return event.time


def _events(records: Sequence[bytes], cpu: int, clock: _Clock) -> list[Event]:
    """Return the events of records of one CPU. A capture decodes 200,000 a second."""
    found = []
    last_ticks, at = -1, 0.0
    for record in records:
        numbers, ticks, frame, ids = _WORDS.unpack_from(record)
        if ticks != last_ticks:
            last_ticks, at = ticks, clock.unix_time(ticks)
        kept = ids >> EVENT_KEPT_SHIFT & _KEPT
        found.append(
            Event(
                at,
                cpu,
                numbers & _NUMBER,
                numbers >> EVENT_GENERATION_SHIFT,
                frame & _DEVICE,
                frame >> EVENT_LENGTH_SHIFT & _LENGTH,
                frame >> EVENT_REASON_SHIFT,
                ids >> EVENT_HOOK_SHIFT & _HOOK,
                ids & _BACKEND,
                ids >> EVENT_SERVICE_SHIFT & _SERVICE,
                ids >> EVENT_SNAT_PORT_SHIFT & _SNAT_PORT,
                record[EVENT_FRAME_AT : EVENT_FRAME_AT + min(kept, EVENT_FRAME_BYTES)],
                is_known=bool(ids >> EVENT_KNOWN_SHIFT & 1),
                is_after=bool(ids >> EVENT_AFTER_SHIFT),
            )
        )
    return found


def _mask(shift: int, end: int) -> int:
    """Return as many bits as a field from `shift` to `end` has."""
    return (1 << (end - shift)) - 1


_NUMBER = _mask(0, EVENT_GENERATION_SHIFT)
_DEVICE, _LENGTH = _mask(0, EVENT_LENGTH_SHIFT), _mask(EVENT_LENGTH_SHIFT, EVENT_REASON_SHIFT)
_BACKEND, _SERVICE = _mask(0, EVENT_SERVICE_SHIFT), _mask(EVENT_SERVICE_SHIFT, EVENT_SNAT_PORT_SHIFT)
_SNAT_PORT, _KEPT = _mask(EVENT_SNAT_PORT_SHIFT, EVENT_KEPT_SHIFT), _mask(EVENT_KEPT_SHIFT, EVENT_HOOK_SHIFT)
_HOOK = _mask(EVENT_HOOK_SHIFT, EVENT_KNOWN_SHIFT)


class _Clock:
    """Unix time of the kernel's jiffies."""

    def __init__(self) -> None:
        self._hz = jiffies.hz()
        self._compared_at = -_CLOCK_S
        self._jiffies = 0
        self._unix = 0.0

    def refresh(self) -> None:
        """Compare the clocks if that was long ago. Raises KernelError without the right to load a program."""
        now = time.monotonic()
        if now - self._compared_at >= _CLOCK_S:
            self._jiffies, self._unix, self._compared_at = jiffies.jiffies(), time.time(), now

    def unix_time(self, ticks: int) -> float:
        """Return the time of jiffies, which wrap: within 2^31 of now."""
        since = (ticks - self._jiffies) & 0xFFFFFFFF
        return self._unix + (since - (since >> 31 << 32)) / self._hz


class _Rings:
    """One map of rings, mapped into memory."""

    def __init__(self, mapped: mmap.mmap, slots: int, count: int, map_id: int, inode: int) -> None:
        self._mapped, self._slots, self.count, self.map_id, self.inode = mapped, slots, count, map_id, inode
        self._view = memoryview(mapped)
        self._words = self._view.cast("Q")
        self._next = [max(0, self._written(cpu) - slots + 1) for cpu in range(count)]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the rings of a pin. Raises NotFound, LayoutMismatch, KernelError."""
        rings = possible_cpus()
        with kernel_errors("open", str(path)):
            try:
                inode = os.stat(path).st_ino
                fd = bpfsys.obj_get(str(path))  # an array behind a read-only descriptor cannot be mapped
            except FileNotFoundError:
                raise NotFound(
                    f"no map {path.name} under {path.parent}: no agent has run with this --bpffs, or it keeps no events"
                    " (--events 0)"
                ) from None
        try:
            info = bpf_map.map_info(fd)
            is_ours = info.type == MapType.ARRAY and info.max_entries == 1 and info.flags & F_MMAPABLE
            slots = slots_of(info.value_size, rings) if is_ours else None
            if slots is None:
                raise LayoutMismatch(
                    f"{path} holds no event rings of this version: nothing was read; start the agent again"
                )
            with kernel_errors("mmap", str(path)):
                mapped = mmap.mmap(fd, info.value_size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        return cls(mapped, slots, rings, info.id, inode)

    def is_replaced(self, path: Path) -> bool:
        """Whether the pin is that of another map, or is gone."""
        try:
            return os.stat(path).st_ino != self.inode
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Unmap them."""
        self._words.release()
        self._view.release()
        self._mapped.close()

    def limited(self) -> int:
        """Return the events that have no record because of --event-rate."""
        return sum(self._words[self._head(cpu) // 8 + EVENT_HEAD_LIMITED] for cpu in range(self.count))

    def overwritten(self) -> int:
        """Return the records that had been overwritten when the rings were mapped."""
        return sum(self._next)

    def skip(self) -> None:
        """Forget the records that are there."""
        self._next = [self._written(cpu) for cpu in range(self.count)]

    def take(self, cpu: int) -> tuple[int, list[bytes]]:
        """Return how many records of a ring were lost since the last call, and the others, the oldest one first."""
        begin, end = self._next[cpu], self._written(cpu)
        self._next[cpu] = end
        first = max(begin, end - self._slots)
        copies = self._copy(cpu, first, end)
        # the slot of the next record may be half written: its old content is never taken
        valid = max(first, self._written(cpu) - self._slots + 1)
        kept = [copy for number, copy in enumerate(copies, first) if number >= valid and _has_number(copy, number)]
        return end - begin - len(kept), kept

    def _copy(self, cpu: int, first: int, end: int) -> list[bytes]:
        at = self._head(cpu) + EVENT_BYTES
        slots = (at + (number & (self._slots - 1)) * EVENT_BYTES for number in range(first, end))
        return [bytes(self._view[slot : slot + EVENT_BYTES]) for slot in slots]

    def _head(self, cpu: int) -> int:
        return cpu * (1 + self._slots) * EVENT_BYTES

    def _written(self, cpu: int) -> int:
        return self._words[self._head(cpu) // 8 + EVENT_HEAD_WRITTEN]


def _has_number(record: bytes, number: int) -> bool:
    written: int = _WORDS.unpack_from(record)[0]
    return (written ^ number) & 0xFFFFFFFF == 0
