"""One laboratory a test; skipped without root or BIRD."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lbagent.announce.bgp.bird_process import NoBird, find_program
from tests.announce.bgp.router_lab import RouterLab


@pytest.fixture
def bird() -> str:
    """The program; the tests that need it are skipped without."""
    try:
        return find_program()
    except NoBird as error:
        pytest.skip(str(error))


@pytest.fixture
def lab(bird: str) -> Iterator[RouterLab]:
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    lab = RouterLab()
    try:
        yield lab
    finally:
        lab.close()
