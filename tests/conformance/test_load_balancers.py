"""The parts for Services of type LoadBalancer in a cluster: pools that lbagent reads, a configuration that BIRD accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lbagent.announce.bgp.bird_process import find_program
from lbagent.pools.read_pools import read_pools
from tests.conformance.load_balancers import POOLS, router_config


@pytest.mark.parametrize("mode", sorted(POOLS))
def test_the_pools_are_announced_by_what_the_mode_says(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text(POOLS[mode])
    read = read_pools(str(path))
    assert [sorted(map(str, pool.announce)) for pool in read.pools] == [[mode]]
    assert (read.bgp is not None) == (mode == "bgp")


def test_bird_takes_the_routers_configuration(tmp_path: Path) -> None:
    path = tmp_path / "router.conf"
    path.write_text(router_config(["172.31.77.11", "172.31.77.12"], tmp_path / "log"))
    done = subprocess.run([find_program(), "-p", "-c", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_text().count("protocol bgp") == 2
    assert "krt_prefsrc = 192.168.77.1" in path.read_text()
