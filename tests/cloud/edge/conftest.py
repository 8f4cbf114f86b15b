"""The router of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.router import Router, need_router


@pytest.fixture
def router() -> Iterator[Router]:
    """A router that was started."""
    need_router()
    with Router() as found:
        found.start()
        yield found
