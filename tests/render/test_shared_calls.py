"""Bursts are kept for the slowest renderer, and no longer."""

from __future__ import annotations

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.model.service import SVC, ServiceName
from lbagent.model.state import State
from lbagent.render import shared_calls
from lbagent.render.service_calls import View
from lbagent.render.shared_calls import BurstReader, SharedCalls
from lbagent.sync.target_protocol import Desired, ObjectFacts

FACTS = ObjectFacts((), frozenset(), frozenset({"t/a"}))


def desired(port: int) -> Desired:
    row = SVC(L3n4Addr("10.0.0.1", port), 0, ServiceName("t", "a"), port_name="http")
    return Desired(State(port, (row,)), None, FACTS)


def read(reader: BurstReader) -> list[str]:
    """Make all calls; return their names."""
    found = []
    for burst in reader.next_bursts():
        found += [call.name for call in burst.calls]
        reader.made(burst)
    return found


def test_bursts_go_when_every_reader_has_them() -> None:
    shared = SharedCalls()
    log = shared.log(View())
    quick, slow = log.reader(), log.reader()
    shared.update(log, desired(1))
    assert read(quick) == read(slow) == ["resync", "flush"]
    for port in (2, 3, 4):
        shared.update(log, desired(port))
        assert read(quick) == ["update_service", "flush"]
    assert len(log._bursts) == 3
    assert read(slow) == ["update_service", "flush"] * 3
    assert not log._bursts
    shared.update(log, desired(5))
    slow.lose()
    assert read(quick) == ["update_service", "flush"]
    assert not log._bursts, "one that lost its place keeps nothing"
    assert read(slow) == ["resync", "flush"]
    assert shared.log(View()) is log
    assert shared.log(View(needs_nodes=True)) is not log


def test_the_same_state_makes_no_burst() -> None:
    shared, given = SharedCalls(), desired(1)
    log = shared.log(View())
    reader = log.reader()
    for _ in range(2):
        shared.update(log, given)
    assert read(reader) == ["resync", "flush"]
    shared.update(log, given)
    assert read(reader) == []


def test_one_that_is_too_far_behind_gets_a_resync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_calls, "MAX_BURSTS", 2)
    shared = SharedCalls()
    log = shared.log(View())
    reader = log.reader()
    shared.update(log, desired(1))
    read(reader)
    for port in (2, 3):
        shared.update(log, desired(port))
    assert [burst.number for burst in reader.next_bursts()] == [2, 3]
    shared.update(log, desired(4))
    assert read(reader) == ["resync", "flush"]
