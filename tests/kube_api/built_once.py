"""What a fixture needs and Go has to build: before the first test begins, as a test has a time-out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest

from tests.kube_api.programs import BuildFailed, Missing

T = TypeVar("T")
Say = Callable[[str], object]


class BuiltOnce(Generic[T]):
    """A build that a conftest's pytest_collection_finish begins, and whose result its fixture asks for."""

    def __init__(self, fixture: str, build: Callable[[Say], T]) -> None:
        """Name the fixture; `build` says what it does, and returns at once what is there already."""
        self.fixture, self.build = fixture, build
        self.failed: Exception | None = None

    def begin(self, session: pytest.Session) -> None:
        """Build what is missing if a test needs it, with a message: minutes without one look like a test that hangs."""
        wanted = any(self.fixture in getattr(item, "fixturenames", ()) for item in session.items)
        if not wanted or session.config.option.collectonly:
            return
        try:
            self.build(_speaker(session.config))
        except (Missing, BuildFailed) as error:
            self.failed = error

    def result(self) -> T:
        """Return what was built; skip where a program to build it with is missing, fail where the build did."""
        if isinstance(self.failed, Missing):
            pytest.skip(f"missing: {self.failed}")
        if self.failed:
            pytest.fail(f"go build: {self.failed}")
        return self.build(print)


def _speaker(config: pytest.Config) -> Say:
    """Return what writes to the terminal, also in a process that xdist started: its stderr is that of the run."""
    plugins = config.pluginmanager
    if not hasattr(config, "workerinput"):
        return plugins.getplugin("terminalreporter").write_line  # type: ignore[union-attr, no-any-return]
    capture = plugins.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)

    return say
