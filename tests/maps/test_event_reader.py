"""The reader of events beside a writer: records that are being overwritten, pins that are replaced, gone or foreign."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lbagent.errors import LayoutMismatch, NotFound
from lbagent.kernel import bpfsys
from lbagent.kernel.cpus import possible_cpus
from lbagent.kernel.jiffies import hz, jiffies
from lbagent.maps import event_map, event_reader, pins
from lbagent.maps.event_reader import EventReader
from lbagent.maps.kernel_maps import KernelMaps
from tests.maps.conftest import SMALL

pytestmark = [pytest.mark.root, pytest.mark.bpf]
CPUS = possible_cpus()
SLOTS = 8


class Writer:
    """Writes records as a program does, by the documented bytes."""

    def __init__(self, fd: int, slots: int = SLOTS) -> None:
        self.fd, self.slots = fd, slots
        self.view = mmap.mmap(fd, CPUS * (slots + 1) * 128, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self.clock = jiffies()

    def head(self, cpu: int) -> int:
        return cpu * (self.slots + 1) * 128

    def written(self, cpu: int = 0) -> int:
        return int(struct.unpack_from("=Q", self.view, self.head(cpu))[0])

    def begin(self, device: int, cpu: int = 0, ticks: int = 0) -> None:
        """Write all of a record but its number."""
        at = self.head(cpu) + 128 + self.written(cpu) % self.slots * 128
        struct.pack_into("=QII", self.view, at + 8, self.clock + ticks, device, 60)

    def end(self, cpu: int = 0) -> None:
        at, number = self.head(cpu), self.written(cpu)
        struct.pack_into("=I", self.view, at + 128 + number % self.slots * 128, number & 0xFFFFFFFF)
        struct.pack_into("=Q", self.view, at, number + 1)

    def put(self, *devices: int, cpu: int = 0, ticks: int = 0) -> None:
        for device in devices:
            self.begin(device, cpu, ticks)
            self.end(cpu)


@contextmanager
def pinned(bpffs: str, slots: int = SLOTS) -> Iterator[Writer]:
    """Pin new rings, as an agent with another --events does."""
    pins.ensure_pin_dir(bpffs)
    fd = event_map.open_event_map(bpffs, slots * CPUS)
    assert fd is not None
    event_map.pin_event_map(bpffs, fd)
    writer = Writer(fd, slots)
    yield writer
    writer.view.close()
    os.close(fd)


def devices(reader: EventReader) -> list[int]:
    return [event.device for event in reader.read()]


def test_new_records_are_read_once(bpffs: str) -> None:
    with pinned(bpffs) as writer:
        writer.put(1, 2)
        with EventReader(bpffs) as now, EventReader(bpffs, last=None) as whole, EventReader(bpffs, last=1) as last:
            writer.put(3)
            assert devices(now) == [3]
            assert devices(whole) == [1, 2, 3]
            assert devices(last) == [2, 3]
            assert devices(now) == devices(whole) == devices(last) == []
            assert now.lost == whole.lost == last.lost == 0


def test_records_of_all_cpus_are_in_the_order_of_time(bpffs: str) -> None:
    if CPUS < 2:
        pytest.skip("one CPU")
    with pinned(bpffs) as writer, EventReader(bpffs) as reader:
        writer.put(1, ticks=-2 * hz(), cpu=1)
        writer.put(2, ticks=-hz(), cpu=0)
        writer.put(3, ticks=0, cpu=1)
        found = reader.read()
    assert [event.device for event in found] == [1, 2, 3]
    assert [event.cpu for event in found] == [1, 0, 1]
    assert found[2].time - found[0].time == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("many", [7, 8, 9, 30])
def test_what_was_overwritten_is_counted(bpffs: str, many: int) -> None:
    with pinned(bpffs) as writer, EventReader(bpffs) as reader:
        writer.put(*range(1, many + 1))
        assert devices(reader) == list(range(max(1, many - 6), many + 1))
        assert reader.lost == max(0, many - 7)


def test_a_record_that_is_being_written_is_never_read(bpffs: str) -> None:
    """The writer has begun to overwrite the oldest slot: neither its old nor its new half is an event."""
    with pinned(bpffs) as writer, EventReader(bpffs) as reader:
        writer.put(*range(1, 9))
        writer.begin(99)
        assert devices(reader) == [2, 3, 4, 5, 6, 7, 8]
        writer.end()
        assert devices(reader) == [99]
        assert reader.lost == 1


def test_records_overwritten_during_the_copy_are_lost(bpffs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer continues between the reader's look at the number and its copy."""
    with pinned(bpffs) as writer, EventReader(bpffs) as reader:
        writer.put(*range(1, 7))
        copy = event_reader._Rings._copy

        def late(self: event_reader._Rings, cpu: int, first: int, end: int) -> list[bytes]:
            if cpu == 0 and end == 6:
                writer.put(*range(7, 12))
                writer.begin(12)
            return copy(self, cpu, first, end)

        monkeypatch.setattr(event_reader._Rings, "_copy", late)
        assert devices(reader) == [5, 6]  # 3 and before are overwritten, 4 is being overwritten
        assert reader.lost == 4
        writer.end()
        assert devices(reader) == [7, 8, 9, 10, 11, 12]
        assert reader.lost == 4


def test_numbers_wrap_after_32_bits(bpffs: str) -> None:
    with pinned(bpffs) as writer:
        struct.pack_into("=Q", writer.view, writer.head(0), (1 << 32) - 2)
        with EventReader(bpffs) as reader:
            writer.put(1, 2, 3, 4)
            assert devices(reader) == [1, 2, 3, 4]
            assert reader.lost == 0


def test_the_rings_of_a_restart_with_another_number_are_followed(bpffs: str) -> None:
    """What the old ones still have comes first; no descriptor of them stays."""
    with pinned(bpffs) as old, EventReader(bpffs) as reader:
        old.put(1)
        before = len(os.listdir("/proc/self/fd"))
        with pinned(bpffs, 2 * SLOTS) as new:
            old.put(2)
            new.put(3)
            assert devices(reader) == [1, 2, 3]
            old.put(4)
            new.put(*range(5, 19))
            assert devices(reader) == list(range(5, 19))
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_same_number_keeps_the_rings(bpffs: str) -> None:
    with pinned(bpffs) as writer, EventReader(bpffs) as reader:
        with pinned(bpffs) as again:
            assert bpfsys.same_object(writer.fd, again.fd)
            again.put(1)
        assert devices(reader) == [1]


def test_a_pin_that_goes_and_comes_back(bpffs: str) -> None:
    with pinned(bpffs) as writer, EventReader(bpffs) as reader:
        event_map.pin_event_map(bpffs, None)
        writer.put(1)
        assert devices(reader) == [1]
        with pytest.raises(NotFound, match="no map lb_events"):
            EventReader(bpffs)
        event_map.pin_event_map(bpffs, writer.fd)  # another pin of the same map: nothing is read twice or missed
        writer.put(2)
        assert devices(reader) == [2]


@pytest.mark.parametrize("foreign", ["lb_live", "lb4_affinity", "lb_scratch"])
def test_a_foreign_pin_is_rejected_and_replaced_by_the_agent(bpffs: str, foreign: str) -> None:
    with KernelMaps.open(bpffs, SMALL) as maps, pinned(bpffs) as writer, EventReader(bpffs) as reader:
        writer.put(1)
        os.unlink(f"{bpffs}/v1/lb_events")
        bpfsys.obj_pin(maps.fd(foreign), f"{bpffs}/v1/lb_events")
        with pytest.raises(LayoutMismatch, match="no event rings"):
            EventReader(bpffs)
        with pytest.raises(LayoutMismatch, match="no event rings"):
            reader.read()
        with pinned(bpffs) as ours:
            ours.put(2)
            assert devices(reader) == [1, 2]  # what was read before the error is not lost


@pytest.mark.parametrize(
    ("events", "slots"), [(1, 2), (4 * CPUS, 4), (4 * CPUS - 1, 2), (7 * CPUS, 4), (65536, 65536 // CPUS)]
)
def test_rings_have_a_power_of_two_of_slots(events: int, slots: int) -> None:
    if slots & (slots - 1):
        pytest.skip("a number of CPUs that is no power of two")
    assert event_map.event_map(events).value_size == CPUS * (1 + slots) * 128
