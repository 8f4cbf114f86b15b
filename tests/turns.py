"""Several tests at a time (`make test`, pytest-xdist): which files come first, and which tests run alone.

A file's tests stay together; files marked `early` come first, as one of them would otherwise run alone at the end. A test marked `alone`
runs without other tests, one marked `quiet` with at most one other quiet test. Files with such tests are the very first ones, so that
the others wait only once. Without xdist there are no turns.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

FOLDER = "turns"  # in what xdist hands to its workers
QUIET_AT_ONCE = 2
LOOK_S = 0.05


class Kind(Enum):
    """Which tests may run at the same time; the marker of a test."""

    ALONE = "alone"
    QUIET = "quiet"
    PLAIN = ""


def kind_of(item: pytest.Item) -> Kind:
    """Return the kind in a test's markers."""
    return next((kind for kind in (Kind.ALONE, Kind.QUIET) if item.get_closest_marker(kind.value)), Kind.PLAIN)


@contextlib.contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """Hold the lock of this file, shared or exclusive. Raises BlockingIOError if `how` is non-blocking."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


class Turns:
    """The locks of a run: a waiting test holds `queue`, so no test is overtaken; running tests hold `plain` and `quiet`."""

    def __init__(self, folder: Path) -> None:
        self._queue, self._plain, self._quiet = (folder / name for name in ("queue", "plain", "quiet"))
        self._places = [folder / f"quiet-{number}" for number in range(QUIET_AT_ONCE)]

    def take(self, kind: Kind, turn: contextlib.ExitStack) -> None:
        """Wait until a test of this kind may run; its turn ends when `turn` is closed."""
        with held(self._queue, fcntl.LOCK_EX):
            if kind is Kind.PLAIN:
                with held(self._quiet, fcntl.LOCK_EX):
                    turn.enter_context(held(self._plain, fcntl.LOCK_SH))
            elif kind is Kind.QUIET:
                with held(self._plain, fcntl.LOCK_EX):
                    turn.enter_context(held(self._quiet, fcntl.LOCK_SH))
                self._take_place(turn)
            else:
                turn.enter_context(held(self._plain, fcntl.LOCK_EX))
                turn.enter_context(held(self._quiet, fcntl.LOCK_EX))

    def _take_place(self, turn: contextlib.ExitStack) -> None:
        while True:
            for place in self._places:
                with contextlib.suppress(BlockingIOError):
                    turn.enter_context(held(place, fcntl.LOCK_EX | fcntl.LOCK_NB))
                    return
            time.sleep(LOOK_S)


class Controller:
    """In the process that distributes tests: one folder of locks per run."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="lbagent-turns-")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the folder of locks to a worker."""
        node.workerinput[FOLDER] = self.folder

    def pytest_unconfigure(self) -> None:
        """Remove them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def in_order(items: list[pytest.Item]) -> None:
    """Put files with turns in front, then those marked `early`; else the order stays: it must be the same in every process."""
    waited_for = {item.path for item in items if kind_of(item) is not Kind.PLAIN}
    early = {item.path for item in items if item.get_closest_marker("early")}
    items.sort(key=lambda item: (item.path not in waited_for, item.path not in early))


class Worker:
    """In a process that runs tests."""

    def __init__(self, folder: str) -> None:
        self._turns = Turns(Path(folder))
        self._turn = contextlib.ExitStack()
        self._keeps_turn = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """See `in_order`."""
        in_order(items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Wait for the turn, outside of the test's own time-out.

        Consecutive tests of one file with the same kind share a turn: otherwise tests that start in between would delay them.
        """
        kind = kind_of(item)
        if not self._keeps_turn:
            self._turns.take(kind, self._turn)
        follows = nextitem is not None and nextitem.path == item.path and kind_of(nextitem) is kind
        self._keeps_turn = follows and kind is not Kind.PLAIN
        with contextlib.nullcontext() if self._keeps_turn else self._turn:
            return (yield)


def register(config: pytest.Config) -> None:
    """Register the plug-in for the role of this process in the run."""
    if folder := getattr(config, "workerinput", {}).get(FOLDER):
        config.pluginmanager.register(Worker(folder))
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Controller())
