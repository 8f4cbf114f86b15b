"""Which numbers of deletions wait for the operator, and how long the pauses between requests are."""

from __future__ import annotations

import pytest

from lbagent.kube import reflector
from lbagent.kube.kube_settings import KubeTiming
from lbagent.kube.reflector import Backoff
from lbagent.sources.kube.deletion_guard import needs_confirmation


@pytest.mark.parametrize(
    ("known", "gone", "percent", "waits"),
    [
        (20, 10, 50, False),  # half is not more than half
        (20, 11, 50, True),
        (19, 18, 50, False),  # too few to say
        (19, 19, 50, True),  # an empty list is none
        (1, 1, 50, True),
        (1, 1, 100, False),
        (1000, 1000, 100, False),
        (100, 1, 0, True),
        (100, 0, 0, False),
        (0, 0, 50, False),
        (100, 80, 80, False),
        (100, 81, 80, True),
    ],
)
def test_needs_confirmation(known: int, gone: int, percent: int, waits: bool) -> None:
    assert needs_confirmation(known, gone, percent) is waits


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(reflector.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("luck", "wanted"),
    [(0.0, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]), (1.0, [1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30])],
)
def test_pauses_double_from_0_8_to_30_seconds(clock, luck: float, wanted: list[float]) -> None:
    backoff = Backoff(KubeTiming(), lambda: luck)
    for want in wanted:
        pause = backoff.pause()
        assert pause == pytest.approx(want)
        clock[0] += pause + 1


def test_a_healthy_minute_makes_them_short_again(clock) -> None:
    backoff = Backoff(KubeTiming(), lambda: 0.0)
    for _ in range(5):
        clock[0] += backoff.pause()
    clock[0] += 59
    assert backoff.pause() > 20
    clock[0] += 30 + 61
    assert backoff.pause() == pytest.approx(0.8)


def test_a_watch_that_ends_waits_only_when_it_ends_again_soon(clock) -> None:
    backoff = Backoff(KubeTiming(), lambda: 0.0)
    assert backoff.pause(is_failure=False) == 0
    clock[0] += 1
    assert backoff.pause(is_failure=False) == pytest.approx(0.8)
    clock[0] += 400
    assert backoff.pause(is_failure=False) == 0
