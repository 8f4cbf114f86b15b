"""Which tests run at the same time."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from pathlib import Path

import pytest

from tests.turns import Kind, Turns

LONG_S, SHORT_S = 10.0, 0.2


class Run:
    """A test that runs, or waits for its turn."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._turns, self._kind = Turns(folder), kind
        self._began, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.ExitStack() as turn:
            self._turns.take(self._kind, turn)
            self._began.set()
            self._ends.wait(LONG_S)

    def runs(self) -> bool:
        """Return whether it has begun, or begins within a moment."""
        return self._began.wait(SHORT_S)

    def end(self) -> None:
        """End it, and wait for that."""
        self._ends.set()
        self._thread.join(LONG_S)


BESIDE = {(Kind.PLAIN, Kind.PLAIN), (Kind.QUIET, Kind.QUIET)}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(Kind, Kind)))
def test_what_runs_beside_what(tmp_path: Path, first: Kind, second: Kind) -> None:
    one = Run(tmp_path, first)
    assert one.runs()
    other = Run(tmp_path, second)
    assert other.runs() == ((first, second) in BESIDE)
    one.end()
    assert other._began.wait(LONG_S)
    other.end()


def test_a_third_quiet_one_waits_for_either_of_two(tmp_path: Path) -> None:
    two = [Run(tmp_path, Kind.QUIET) for _ in range(2)]
    assert all(each.runs() for each in two)
    third = Run(tmp_path, Kind.QUIET)
    assert not third.runs()
    two[1].end()
    assert third._began.wait(LONG_S)
    for each in (two[0], third):
        each.end()


def test_who_waits_is_overtaken_by_none(tmp_path: Path) -> None:
    """A test that waits to run alone is not delayed by tests that arrive later."""
    first = Run(tmp_path, Kind.PLAIN)
    assert first.runs()
    alone = Run(tmp_path, Kind.ALONE)
    time.sleep(SHORT_S)
    later = Run(tmp_path, Kind.PLAIN)
    assert not alone.runs()
    assert not later.runs()
    first.end()
    assert alone._began.wait(LONG_S)
    assert not later.runs()
    alone.end()
    assert later._began.wait(LONG_S)
    later.end()
