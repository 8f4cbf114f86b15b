"""Two CPUs on one small table, and a sweeper beside them: no flow moves, no port is held twice.

The long run is a benchmark (`bench/race.py`), which also describes the checks of each frame.
"""

from __future__ import annotations

import os
import threading

import pytest

from bench.race import Race, race
from lbagent.kernel import bpf_prog
from lbagent.maps.layout import FLOW_WAYS, LB_SWEEP, SWEEP_STEP

SECONDS = 1.5  # a few hundred thousand packets


def sweep_until(done: threading.Event, made: Race) -> None:
    """Sweep the family's table over and over."""
    program = made.kernel.programs[f"sweep{made.family}"]
    sizes = made.kernel.sizes
    buckets = (sizes.flow4 if made.family == 4 else sizes.flow6) // FLOW_WAYS
    while not done.is_set():
        bpf_prog.prog_test_run(program, LB_SWEEP.pack(0, buckets, 0, 0, 0, 0), repeat=-(-buckets // SWEEP_STEP))


@pytest.mark.alone
@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("family", [4, 6], ids=["ipv4", "ipv6"])
def test_two_cpus_and_a_sweeper(family: int, *, local: bool) -> None:
    """Requests, replies, evictions and sweeps at once: backends right, kept flows unmoved, tables sound.

    Replies of remote backends are found by their SNAT slots, those of local ones by their flows.
    """
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU: nothing to race")
    with race(family, local=local) as made:
        done = threading.Event()
        sweeper = threading.Thread(target=sweep_until, args=(done, made))
        sweeper.start()
        try:
            result = made.run(SECONDS)
        finally:
            done.set()
            sweeper.join()
    assert result.faults == {}
    assert result.counts["reply_kept"] > 10_000
    assert local or result.counts["renewed"] > 1_000  # churned flows were pushed out and came again
