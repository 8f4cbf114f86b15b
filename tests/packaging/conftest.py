"""The program that renders deploy/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube_api.built_once import BuiltOnce
from tests.packaging.renderer import build_renderer

_RENDERER = BuiltOnce("renderer", build_renderer)
pytest_collection_finish = _RENDERER.begin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that render: the program is built once, which takes a minute."""
    for item in items:
        if "renderer" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def renderer() -> Path:
    return _RENDERER.result()
