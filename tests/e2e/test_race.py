"""Two CPUs on one small table, requests, replies and evictions mixed; the long version is `python -m bench --only race`."""

from __future__ import annotations

import os

import pytest

from bench.race import race

SECONDS = 3.0


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("family", [4, 6])
def test_two_cpus_on_one_table(family: int) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    with race(family) as made:
        result = made.run(SECONDS, chunk=100_000)
    assert result.faults == {}
    assert result.counts["renewed"] > 1000, "the table was large enough: nothing was evicted"
    assert result.counts["reply_kept"] > 10_000
