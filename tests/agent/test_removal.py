"""`lbagent cleanup`: every data plane removes its own, and BIRD ends before the first one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lbagent.agent import removal
from lbagent.config import Config


def test_bird_ends_once_before_anything_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    running = ["/state"]

    async def end_left_bird(state_dir: str) -> bool:
        return bool(running) and running.pop() == state_dir

    def nothing_there(_config: Config, _before: Callable[[], None]) -> list[str]:
        return []

    def with_programs(config: Config, before: Callable[[], None]) -> list[str]:
        before()
        assert not running
        return [f"removed {config.bpffs}"]

    monkeypatch.setattr(removal, "end_left_bird", end_left_bird)
    monkeypatch.setattr(removal, "removers", lambda: [nothing_there])
    config = Config(bpffs="/pins", state_dir="/state")
    assert removal.cleanup(config) == []
    assert running, "without its pins it may be another agent's"
    monkeypatch.setattr(removal, "removers", lambda: [nothing_there, with_programs, with_programs])
    assert removal.cleanup(config) == ["ended bird", "removed /pins", "removed /pins"]
