"""When the heap is trimmed: after many writes, once a moment has passed without any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lbagent import process_memory


class _Enough(Exception):
    pass


@pytest.mark.parametrize(
    ("counts", "trimmed"),
    [
        ([0, 0, 0], 0),
        ([0, 9_000, 9_000], 0),
        ([0, 20_000, 40_000], 0),  # the storm goes on
        ([0, 20_000, 20_000, 20_000], 1),
        ([0, 20_000, 20_000, 45_000, 45_000], 2),
    ],
)
def test_a_storm_is_followed_by_one_trim(counts: list[int], trimmed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(process_memory, "trim", lambda: trims.append(None))
    monkeypatch.setattr(process_memory, "LOOK_S", 0)
    left: Iterator[int] = iter(counts)

    def writes() -> int:
        try:
            return next(left)
        except StopIteration:
            raise _Enough from None

    with pytest.raises(_Enough):
        asyncio.run(process_memory.trim_after_storms(writes))
    assert len(trims) == trimmed
