"""Rules A15 and A16: what is queued, what is in force, and how long it took from the change of an endpoint."""

from __future__ import annotations

import time

import pytest

from lbagent.model.histogram import Histogram
from lbagent.objects.records import ObjectChange
from lbagent.sync import sync_record
from lbagent.sync.sync_record import SyncRecord
from lbagent.testing.snapshot_target import SnapshotTarget
from tests.sync.rig import ListSource, endpoints, make_loop, running, service


def change(triggered_at: float = 0.0, kind: str = "EndpointSlice") -> ObjectChange:
    return ObjectChange(kind, "k", None, None, triggered_at)


def test_a15_the_bounds_are_kube_proxys() -> None:
    bounds = SyncRecord().programming.bounds
    assert bounds[:4] == (0.25, 0.5, 1, 2)
    assert bounds[59:63] == (58, 59, 60, 65)
    assert bounds[-9:] == (110, 115, 120, 150, 180, 210, 240, 270, 300)
    assert list(bounds) == sorted(set(bounds))


def test_a15_latency_counts_until_the_state_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    record = SyncRecord()
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + 10)
    record.queued([change(began + 8), change(began + 9.9), change()], 5)
    record.queued([change(began + 9)], 6)
    assert (record.programming.count, record.pending["EndpointSlice"]) == (0, 4)
    record.in_force(5, 0.1)
    assert (record.programming.count, record.pending["EndpointSlice"]) == (2, 1)
    assert record.programming.sum == pytest.approx(2.1)
    record.in_force(6, 0.1)
    assert (record.programming.count, record.pending["EndpointSlice"]) == (3, 0)
    assert record.changes["EndpointSlice"] == 4


def test_a15_what_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes from before this process, and those that change no State."""
    record = SyncRecord()
    now = time.time()
    record.queued([change(now - 1000)], 1)
    record.queued([change(now + 1000)], None)
    record.in_force(1, 0.1)
    assert record.programming.count == 0
    assert record.pending["EndpointSlice"] == 0
    record.queued([change(time.time() + 1000)], 2)
    record.in_force(2, 0.1)
    assert (record.programming.count, record.programming.sum) == (1, 0)  # a clock that is ahead


def test_a15_what_waits_for_long_takes_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_record, "MAX_TIMES", 50)
    record = SyncRecord()
    later = time.time() + 1000
    for generation in range(1, 3001):
        record.queued([change(later), change(kind="Service")], generation)
    assert len(record._waiting) == sync_record.MAX_WAITING
    assert len(record._waiting[-1][2]) == 50
    assert record.pending == {"EndpointSlice": 3000, "Service": 3000}
    record.in_force(2999, 0.1)
    assert record.pending.total() == 2 * (3000 - sync_record.MAX_WAITING + 1)
    record.in_force(3000, 0.1)
    assert record.pending.total() == 0


def test_buckets() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.observe(value)
    assert list(histogram.cumulative()) == [(1, 2), (2, 3), (float("inf"), 4)]
    assert (histogram.count, histogram.sum) == (4, 10)


class Held(SnapshotTarget):
    """A target that applies a State when the test allows it."""

    def __init__(self) -> None:
        super().__init__("held")
        self.fails = False

    async def write(self, _state: object) -> None:
        if self.fails:
            raise OSError("not now")


async def test_a16_the_loop_counts_changes_by_kind() -> None:
    source, target = ListSource("s"), Held()
    loop = make_loop([source], target)
    async with running(loop):
        source.first_list(service(1), endpoints(1, 1))
        await loop.settled()
        record = loop.record
        assert (record.changes["Service"], record.changes["EndpointSlice"], record.pending.total()) == (1, 1, 0)
        assert record.durations.count == 1
        assert record.synced_at >= record.queued_at > 0
        target.fails = True
        source.put(endpoints(1, 1, 2))
        await loop.settled()
        assert record.pending["EndpointSlice"] == 1
        assert record.durations.count == 1
