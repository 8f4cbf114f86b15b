"""A node loses its power: the other agents find it out themselves, and its endpoints take no new flows.

Nothing else makes a node dead: an agent that stops, or is cut off itself, an API server that is away (test_node_panic.py: a cut that
takes a third of the nodes).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.kube_api.announcing_nodes import Link
from tests.kube_api.cluster import Cluster
from tests.kube_api.watching_nodes import ClusterOfNodes
from tests.lab import traffic
from tests.lab.netns import Stopwatch, wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
VIP, ONLY, MOVING = "10.8.0.100", "10.8.0.101", "10.8.0.102"
POOLS = """\
pools:
- {name: lan, addresses: [10.8.0.100-10.8.0.150], announce: [l2]}
l2: {restartGrace: 8s, leaseDuration: 60s}
"""


@pytest.fixture(scope="module")
def four(plane: object) -> Iterator[ClusterOfNodes]:
    """Four nodes whose agents run and observe each other."""
    cluster = Cluster(plane)  # type: ignore[arg-type]
    link = Link(cluster, pools=POOLS)
    try:
        nodes = ClusterOfNodes(link, 4)
        nodes.serve("web", VIP)
        yield nodes
    finally:
        link.close()
        cluster.clear()


@pytest.fixture
def nodes(four: ClusterOfNodes) -> Iterator[ClusterOfNodes]:
    """The same, all alive before and after."""
    yield four
    four.restore()


def test_no_new_flow_goes_to_a_node_without_power(nodes: ClusterOfNodes) -> None:
    """Each of the others opens connections all the time: none that begins 3 s after the cut goes to the dead node."""
    dead, *others = nodes.hosts
    for host in others:
        assert nodes.backends_of(host, VIP, 100) == {each.name for each in nodes.hosts}
    with nodes.loads(others, VIP) as loads:
        time.sleep(1)
        cut_at = nodes.cut(dead)
        time.sleep(8)
    for host, load in zip(others, loads, strict=True):
        late = [at for at in load.unanswered() if at > cut_at + 3.0]
        assert not late, (host.name, [round(at - cut_at, 2) for at in late])
        assert load.unanswered(), "the cut was not felt"
        assert nodes.dead(host)[dead.name] == 1
    text = others[0].agent.cli("status", check=False).stdout
    assert (
        f"degraded   node {dead.name} is dead: its endpoints take no new flows while their Services have others;"
        in text
    )
    nodes.heal(dead)
    for host in others:
        wait_for(lambda host=host: not nodes.dead(host)[dead.name], "its return", 10)
        wait_for(lambda host=host: nodes.backends_of(host, VIP, 90) == {each.name for each in nodes.hosts}, "flows", 10)


def test_the_only_endpoint_of_a_service_stays(nodes: ClusterOfNodes) -> None:
    dead, *others = nodes.hosts
    nodes.link.serve("only", ONLY, hosts=[dead])
    wait_for(lambda: nodes.asked(others[0], ONLY) == dead.name, "the Service", 20)
    cut_at = nodes.cut(dead)
    nodes.until_dead(others[0], dead, cut_at + 3.5)
    time.sleep(0.5)
    (row,) = [each for each in others[0].agent.json("svc", "list") if each["frontend"].startswith(f"{ONLY}:")]
    assert [each["state"] for each in row["backends"]] == ["active"]
    nodes.heal(dead)
    nodes.until_all_live()
    assert nodes.asked(others[0], ONLY) == dead.name


def test_connections_of_before_go_on_when_a_node_was_cut_off_for_seconds(nodes: ClusterOfNodes) -> None:
    dead, observer, *_ = nodes.hosts
    talkers = traffic.Talkers(observer.pod, VIP, 80, 84)
    try:
        assert dead.name in {name for name in talkers.first if name}
        cut_at = nodes.cut(dead)
        nodes.until_dead(observer, dead, cut_at + 3.5)
        nodes.heal(dead)
        nodes.until_all_live()
        assert talkers.ask() == talkers.first
    finally:
        talkers.close()


def test_an_agent_that_hangs_or_ends_makes_no_node_dead(nodes: ClusterOfNodes) -> None:
    hangs, ends, *others = nodes.hosts
    os.kill(hangs.agent.pid, signal.SIGSTOP)
    ends.agent.stop()
    try:
        until = time.monotonic() + 8
        while time.monotonic() < until:
            for host in others:
                assert not any(nodes.dead(host).values())
            time.sleep(0.2)
        assert nodes.backends_of(others[0], VIP, 90) == {each.name for each in nodes.hosts}
    finally:
        os.kill(hangs.agent.pid, signal.SIGCONT)
    for host in others:  # it runs again, and blames no other
        assert not any(nodes.dead(host).values())
    ends.agent.start()


def test_a_busy_machine_makes_no_node_dead(nodes: ClusterOfNodes) -> None:
    """Four processes for each processor take all of its time."""
    argv = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(argv) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            for host in nodes.hosts:
                assert not any(nodes.dead(host).values())
            time.sleep(0.3)
    finally:
        for each in busy:
            each.kill()
            each.wait()


def test_a_node_that_is_cut_off_blames_no_other(nodes: ClusterOfNodes) -> None:
    """It still reaches the API server, and misses all others."""
    cut, *others = nodes.hosts
    cut.pull_cable()
    wait_for(lambda: nodes.dead(others[0])[cut.name], "its death", 10)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        assert not any(nodes.dead(cut).values())
        assert not any(dead for name, dead in nodes.dead(others[0]).items() if name != cut.name)
        time.sleep(0.2)


def test_a_restarted_agent_gives_a_dead_node_no_flow(nodes: ClusterOfNodes) -> None:
    dead, restarted, *_ = nodes.hosts
    cut_at = nodes.cut(dead)
    nodes.until_dead(restarted, dead, cut_at + 3.5)
    with nodes.loads([restarted], VIP) as (load,):
        time.sleep(0.5)
        restarted.agent.stop()
        restarted.agent.start()
        time.sleep(4)
    assert load.unanswered() == []
    assert nodes.dead(restarted)[dead.name] == 1


def test_its_announced_addresses_move_at_once(nodes: ClusterOfNodes) -> None:
    """The Lease of the announcer lasts 60 s here, so that only the agreement of the observers moves the address."""
    nodes.serve("moving", MOVING)
    leader = nodes.link.until_led(MOVING)
    others = [host for host in nodes.hosts if host is not leader]
    nodes.cut(leader)
    watch = Stopwatch()
    wait_for(lambda: any(host.state(MOVING) == "announced" for host in others), "a leader", 30)
    assert watch.s < 5


def test_while_the_api_server_is_away_no_node_is_dead_and_one_that_dies_is_left_out(nodes: ClusterOfNodes) -> None:
    dead, *others = nodes.hosts
    for host in nodes.hosts:
        host.proxy.is_refusing = True
        host.proxy.cut()
    until = time.monotonic() + 8
    while time.monotonic() < until:
        for host in nodes.hosts:
            assert not any(nodes.dead(host).values())
        time.sleep(0.2)
    cut_at = nodes.cut(dead)
    for host in others:
        nodes.until_dead(host, dead, cut_at + 5)
        assert nodes.backends_of(host, VIP, 90) == {each.name for each in others}
    nodes.heal(dead)
    for host in others:
        wait_for(lambda host=host: not nodes.dead(host)[dead.name], "its return", 10)
