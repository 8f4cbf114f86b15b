"""One laboratory per test. `make setup` installs BIRD, so a test without it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lbagent.announce.bgp.bird_process import find_program
from tests.announce.bgp.router_lab import RouterLab


@pytest.fixture
def bird() -> str:
    """The path of bird; skips without root."""
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    return find_program()


@pytest.fixture
def lab(bird: str) -> Iterator[RouterLab]:
    lab = RouterLab()
    try:
        yield lab
    finally:
        lab.close()
