"""When memory is given back: after the start and after many writes, once a moment has passed without any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from lbagent import process_memory


class _Enough(Exception):
    pass


@pytest.mark.parametrize(
    ("counts", "trimmed"),
    [
        ([0, 0, 0], 0),
        ([0, 9_000, 9_000], 0),
        ([0, 20_000, 40_000], 0),  # the storm continues
        ([0, 20_000, 20_000, 20_000], 1),
        ([0, 20_000, 20_000, 45_000, 45_000], 2),
    ],
)
def test_a_storm_is_followed_by_one_trim(counts: list[int], trimmed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(process_memory, "trim", lambda: trims.append(None))
    _run(process_memory.trim_after_storms, counts, monkeypatch)
    assert len(trims) == trimmed


@pytest.mark.parametrize(
    ("counts", "looks"),
    [
        ([5, 5], [2]),
        ([5, 6, 9, 9], [4]),
        ([5, 6, 9, 10], []),  # changes go on
        ([*range(process_memory.MAX_TRIM_CHECKS + 1)], [process_memory.MAX_TRIM_CHECKS + 1]),  # so long at most
        ([5, 5, 5, 20_000, 20_000, 20_000], [2]),  # once
    ],
)
def test_memory_settles_in_the_first_quiet_moment(
    counts: list[int], looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(counts)
    settled: list[int] = []
    monkeypatch.setattr(process_memory, "release_startup_memory", lambda: settled.append(len(counts) - len(left)))
    monkeypatch.setattr(process_memory, "trim", lambda: None)
    _run(process_memory.keep_memory_small, left, monkeypatch)
    assert settled == looks


def _run(
    keep: Callable[[Callable[[], int]], Coroutine[None, None, None]], counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let it look until the counts of writes are used up."""
    monkeypatch.setattr(process_memory, "TRIM_CHECK_INTERVAL_S", 0)

    def writes() -> int:
        if not counts:
            raise _Enough
        return counts.pop(0)

    with pytest.raises(_Enough):
        asyncio.run(keep(writes))
