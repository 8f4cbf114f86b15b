"""Several tests at a time (`make test`, pytest-xdist): which files come first, and tests that need the machine to themselves.

A file's tests stay together; files marked `early` come first, or the last minutes would belong to one of them. A test marked `alone`
runs while no other one does. Without xdist there is nothing to wait for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = "turns"  # in what xdist hands to its workers


@contextlib.contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """Hold the lock of this file, shared or alone."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


class Controller:
    """In the process that hands out tests: one folder of locks a run."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="lbagent-turns-")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker where the locks are."""
        node.workerinput[FOLDER] = self.folder

    def pytest_unconfigure(self) -> None:
        """Remove them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def long_files_first(items: list[pytest.Item]) -> None:
    """Put the files marked `early` in front; all else keeps its order, as every process must find the same one."""
    early = {item.path for item in items if item.get_closest_marker("early")}
    items.sort(key=lambda item: item.path not in early)


class Worker:
    """In a process that runs tests."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """See `long_files_first`."""
        long_files_first(items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Wait for the turn, outside of the test's own time-out. Who waits to be alone is overtaken by none."""
        how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
        with contextlib.ExitStack() as turn:
            with held(self.folder / "queue", fcntl.LOCK_EX):
                turn.enter_context(held(self.folder / "turn", how))
            return (yield)


def register(config: pytest.Config) -> None:
    """Take part in the run, as what this process is in it."""
    if folder := getattr(config, "workerinput", {}).get(FOLDER):
        config.pluginmanager.register(Worker(folder))
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Controller())
