"""One host for all tests of a process: podman takes seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.apilb.hosts.host_lab import HostLab


@pytest.fixture(scope="session")
def lab() -> Iterator[HostLab]:
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    lab = HostLab()
    try:
        yield lab
    finally:
        lab.close()
