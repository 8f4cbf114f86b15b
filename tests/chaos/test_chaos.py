"""A minute of chaos on each hook; ten minutes of it: `make chaos SEED=`."""

from __future__ import annotations

import os

import pytest

from tests.chaos.run import run
from tests.e2e.conftest import opened

pytestmark = pytest.mark.early

SECONDS = 50.0
SEED = 8


@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.quiet
@pytest.mark.slow
@pytest.mark.parametrize("attach", ["xdp", "tc"])
def test_honest_clients_get_through(attach: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: sudo make test")
    with opened(attach) as cluster:
        result = run(cluster, SEED, SECONDS, print)
    print(result.text())
    assert result.faults == []
    assert result.exchanges["new connection"] > 200
    assert sum(result.events.values()) >= 10
