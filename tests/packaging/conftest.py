"""The program that renders deploy/. It is built before the first test begins: a test has a time-out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube.programs import BuildFailed, Missing
from tests.packaging.renderer import build_renderer

_failed: list[Exception] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing now, and say so."""
    wanted = any("renderer" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    try:
        build_renderer(terminal.write_line if terminal else print)
    except (Missing, BuildFailed) as error:
        _failed.append(error)


@pytest.fixture(scope="session")
def renderer() -> Path:
    for error in _failed:
        if isinstance(error, Missing):
            pytest.skip(f"missing: {error}")
        pytest.fail(f"go build: {error}")
    return build_renderer(print)
