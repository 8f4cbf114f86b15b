"""Programs that a fixture needs and Go must build: before the first test starts, as a test has a time-out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

import pytest

from tests.kube_api.programs import BuildFailed, Missing

T = TypeVar("T")
Say = Callable[[str], object]


class BuiltOnce(Generic[T]):
    """A build that a conftest's pytest_collection_finish starts, and whose result its fixture reads."""

    def __init__(self, fixture: str, build: Callable[[Say], T]) -> None:
        """`build` describes itself, and returns an existing result at once."""
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
        """Return the built files; skip if a program for the build is missing, fail if the build failed."""
        if isinstance(self.failed, Missing):
            pytest.skip(f"missing: {self.failed}")
        if self.failed:
            pytest.fail(f"go build: {self.failed}")
        return self.build(print)


def _speaker(config: pytest.Config) -> Say:
    """Return a function that writes to the terminal, also in a process of xdist: its stderr is that of the run."""
    plugins = config.pluginmanager
    if not hasattr(config, "workerinput"):
        return plugins.getplugin("terminalreporter").write_line  # type: ignore[union-attr, no-any-return]
    capture = plugins.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, file=sys.stderr, flush=True)

    return say
