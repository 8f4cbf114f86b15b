"""A pass that is requested soon after another waits as long as that one took; a single one does not wait."""

from __future__ import annotations

import asyncio

import pytest

from lbagent.sync import pacer as pacers
from lbagent.sync.pacer import MAX_PAUSE_S, Pacer
from tests.lab.netns import Stopwatch


async def pause_after(took_s: float, idle_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the sleeps of a pass requested `idle_s` after one that took `took_s`."""
    clock, slept = 1000.0, []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))

    monkeypatch.setattr(pacers.time, "monotonic", lambda: clock)
    monkeypatch.setattr(pacers.asyncio, "sleep", sleep)
    pacer = Pacer()
    pacer.passed(clock - took_s)
    clock += idle_s
    await pacer.pause()
    return slept


@pytest.mark.parametrize(
    ("took_s", "idle_s", "slept"),
    [
        (0.05, 0.0, [0.05]),
        (0.05, 0.02, [0.03]),
        (0.05, 0.06, []),
        (3.0, 0.0, [MAX_PAUSE_S]),
    ],
)
async def test_the_pause_is_what_is_left_of_the_time_the_pass_took(took_s, idle_s, slept, monkeypatch):
    assert await pause_after(took_s, idle_s, monkeypatch) == slept


async def test_the_first_pass_begins_at_once():
    began = Stopwatch()
    await asyncio.wait_for(Pacer().pause(), 10)
    assert began.s < 1
