"""The agent dies by SIGKILL, at any point: the kernel keeps serving, and the next agent takes over."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable

import pytest

from lbagent.maps.consistency import check
from lbagent.maps.kernel_maps import KernelMaps
from lbagent.maps.pins import pin_dir
from tests.e2e.cluster import VIP4, VIP6, Cluster
from tests.e2e.test_operations import nothing_failed
from tests.lab.netns import wait_for

pytestmark = pytest.mark.early

WRITES_MOST = 60  # 1 + 2 + 3 + ... writes: far more than the change takes


def broken(cluster: Cluster) -> list[str]:
    """Walk the maps as the programs would; return the inconsistencies."""
    with KernelMaps.open(cluster.lab.bpffs, create=False) as maps:
        return check(maps)


def test_requests_go_on_without_an_agent_and_ids_come_back(served: Cluster) -> None:
    before, talkers = served.agent.dump(), served.talkers(8)
    with served.load() as load:
        load.wait_more(50)
        served.agent.kill()
        load.wait_more(300)
        served.agent.start()
        load.wait_more(200)
    nothing_failed(load)
    assert served.agent.dump() == before
    assert talkers.ask() == talkers.first
    talkers.close()


def test_a_restart_with_nothing_to_change_writes_nothing(served: Cluster) -> None:
    served.agent.kill()
    served.agent.start()
    writes = [line for line in served.agent.api.metrics().splitlines() if line.startswith("lbagent_map_writes_total")]
    assert writes == ["lbagent_map_writes_total 0"]


def ages_are_trusted(served: Cluster) -> bool:
    """Return whether an agent has swept the tables once: after it flows are no proof of ports."""
    with KernelMaps.open(served.lab.bpffs, create=False) as maps, maps.window("lb_metrics", 0, 8) as view:
        return any(view)


def test_connections_whose_snat_ports_were_forgotten_go_on_or_end(served: Cluster) -> None:
    # the pins of the slots are gone: no reply finds its client by them, so each connection gets a port again, or a RST
    talkers = [served.talkers(9, vip) for vip in (VIP4, VIP6)]
    for each in talkers:
        for _ in range(5):
            assert each.ask() == each.first
    wait_for(lambda: ages_are_trusted(served), "the first sweep", timeout_s=60)
    served.agent.kill()
    for version in (4, 6):
        (pin_dir(served.lab.bpffs) / f"lb{version}_snat").unlink()
    served.agent.start()
    for each in talkers:
        for first, now in zip(each.first, each.ask(), strict=True):
            assert now == first or now.startswith(("ConnectionResetError", "BrokenPipeError")), now
        each.close()
    assert set(served.http()) == {"b1", "b2", "b3"}


def test_kill_at_any_moment_of_the_start(served: Cluster) -> None:
    generator = random.Random(7)
    with served.load(pause_s=0.01) as load:
        for _ in range(8):
            served.agent.kill()
            served.agent.start(wait=False)
            time.sleep(generator.uniform(0.05, 0.9))
        served.agent.kill()
        served.agent.start()
        load.wait_more(50)
    nothing_failed(load)


def test_kill_at_any_moment_of_many_changes(served: Cluster) -> None:
    rest = served.dns("b2", "b3", algorithm="maglev")
    served.serve(served.web("b2", "b3"), rest)
    generator = random.Random(11)
    talkers = served.talkers(6)
    with served.load(pause_s=0.01) as load:
        for round_ in range(6):  # b1 is added, and removed as a terminating pod
            change = served.dns(algorithm="maglev") if round_ % 2 == 0 else served.leaving(rest, "b1")
            change.write(served.folder)
            time.sleep(generator.uniform(0.0, 0.15))
            served.agent.kill()
            assert broken(served) == []
            served.agent.start()
    nothing_failed(load)
    assert talkers.ask() == talkers.first
    talkers.close()


@pytest.mark.slow
@pytest.mark.parametrize("attach", ["xdp"])
def test_kill_after_ever_more_writes(fresh: Callable[..., Cluster], attach: str) -> None:
    # an agent that dies after 1, 2, 3, ... writes and is restarted each time completes a change; b2 and b3 serve all the
    # time, and after each death the maps are consistent (every prefix of a plan: tests/agent, tests/sync)
    cluster = fresh(attach)
    alone = [cluster.web("b2", "b3", algorithm="maglev"), cluster.dns("b2", "b3")]
    grown = [cluster.web("b1", "b2", "b3", algorithm="maglev"), cluster.dns("b1", "b2", "b3")]
    for manifest in alone:
        manifest.write(cluster.folder)
    cluster.agent.start()
    talkers = cluster.talkers(8)
    with cluster.load(pause_s=0.01) as load:
        for change in (grown, [cluster.leaving(manifest, "b1") for manifest in alone], alone):
            cluster.agent.stop()
            for manifest in change:
                manifest.write(cluster.folder)
            deaths = die_again_and_again(cluster)
            assert deaths >= 3
            for manifest in change:
                cluster.wait_backends(manifest)
        load.wait_more(50)
    nothing_failed(load)
    assert talkers.ask() == talkers.first
    talkers.close()


def die_again_and_again(cluster: Cluster) -> int:
    """Start agents that die after 1, 2, 3, ... writes until one has less to write; return how many died."""
    for deaths in range(WRITES_MOST):
        cluster.agent.start(wait=False, env={"LAB_DIE_AFTER": str(deaths + 1)}, module="tests.e2e.dying_agent")
        code = cluster.agent.ended_or_ready()
        assert broken(cluster) == [], f"after death {deaths + 1}"
        if code is None:  # it would still die at its periodic writes
            cluster.agent.kill()
            cluster.agent.start()
            return deaths
        assert code == -9, cluster.agent.tail()
    raise AssertionError(f"not done after {WRITES_MOST} deaths")


def test_sigterm_leaves_the_datapath_and_cleanup_takes_it_away(fresh: Callable[..., Cluster]) -> None:
    cluster = fresh("xdp")
    cluster.web().write(cluster.folder)
    cluster.agent.start()
    refused = cluster.agent.cli("cleanup", check=False)
    assert refused.returncode == 4
    assert str(cluster.agent.pid) in refused.stderr
    assert cluster.agent.stop() == 0
    assert sum(cluster.http(30).values()) == 30
    cluster.agent.cli("cleanup")
    assert not any((cluster.lab.bpffs).rglob("*"))
    links = subprocess.run(
        ["ip", "-n", cluster.lab.node.name, "-d", "link"], capture_output=True, text=True, check=True
    )
    assert "prog/xdp" not in links.stdout
    with pytest.raises(OSError):
        cluster.http(2)
