"""No two nodes answer for an address for over a second: measured on the link, while agents are disconnected, killed and stopped at the worst time."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from lbagent.model.address import parse_ip
from lbagent.model.rendezvous import preferred_node
from tests.kube_api.announcing_nodes import POOLS, Host, Link
from tests.kube_api.cluster import Cluster
from tests.kube_api.control_plane import MERGE
from tests.lab.netns import wait_for
from tests.lab.who_answers import WhoAnswers

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
HOSTS = ("lone1", "lone2")
VIP4 = "10.8.0.100"
VIP6 = next(  # one of the same node, so that one fault affects both
    each
    for each in (f"fd08::{number}" for number in range(110, 150))
    if preferred_node(parse_ip(each), HOSTS) == preferred_node(parse_ip(VIP4), HOSTS)
)
GRACE_S = 6.0
NODE_LEASE_S = 2.0
MOST_TOGETHER_S = 1.0


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    """Two nodes whose agents run; programs answer for `GRACE_S` without them."""
    link = Link(
        cluster, "la-", pools=POOLS.replace("restartGrace: 8s", f"restartGrace: {GRACE_S:g}s"), host_prefix="lone"
    )
    try:
        for number in (1, 2):
            link.add_host(number)
        for host in link.hosts.values():
            host.agent.start()
        yield link
    finally:
        link.close()


class Wire:
    """An address of each family, led by one node, and the hosts that answer for both on the link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        hosts = list(link.hosts.values())
        for number, address in enumerate((VIP4, VIP6)):
            link.serve(f"web{number}", address, hosts=hosts, ipFamilies=[f"IPv{4 if '.' in address else 6}"])
        self.answers = WhoAnswers(link.client, "eth0", {4: "10.8.0.200", 6: "fd08::200"}, VIP4, VIP6)
        self.leader = link.until_led(VIP6, by=link.until_led(VIP4))
        self.heir = next(host for host in hosts if host is not self.leader)

    def are_only(self, host: Host) -> bool:
        mac = host.node.mac("eth0")
        return all(self.answers.last(address) == {mac} for address in (VIP4, VIP6))

    def assert_one(self) -> None:
        for address in (VIP4, VIP6):
            assert self.answers.together_s(address) <= MOST_TOGETHER_S, address


def resume(host: Host) -> None:
    host.agent.process.send_signal(signal.SIGCONT)


def kill_and_start(host: Host) -> None:
    host.agent.kill()
    time.sleep(1)
    host.agent.start(wait=False)


def stop_and_resume(host: Host) -> None:
    host.agent.process.send_signal(signal.SIGSTOP)
    time.sleep(GRACE_S / 2)
    resume(host)


@pytest.mark.parametrize(
    "end", [lambda host: host.agent.kill(), kill_and_start, stop_and_resume], ids=["killed", "restarted", "stopped"]
)
def test_a_leader_that_was_cut_off_ends_when_another_node_takes_over(link: Link, end: Callable[[Host], None]) -> None:
    """Its agent receives nothing, and its programs answer until they expire."""
    wire = Wire(link)
    with wire.answers:
        wait_for(lambda: wire.are_only(wire.leader), "answers of the leader", 20)
        wire.leader.proxy.close()
        time.sleep(GRACE_S + NODE_LEASE_S - 1.2)  # its Lease expired a renewal before
        end(wire.leader)
        wait_for(lambda: wire.are_only(wire.heir), "answers of the other node alone", 5 * GRACE_S + 60)
        time.sleep(2)
        assert wire.are_only(wire.heir)
    wire.assert_one()


def test_the_giver_of_an_address_dies_before_it_hears_the_other_node(link: Link) -> None:
    wire = Wire(link)
    plane = link.cluster.plane
    with wire.answers:
        wait_for(lambda: wire.are_only(wire.leader), "answers of the leader", 20)
        plane.ask("PATCH", f"/api/v1/nodes/{wire.leader.name}", {"spec": {"unschedulable": True}}, MERGE)
        wait_for(lambda: link.lease(VIP4).get("holderIdentity") == wire.heir.name, "the Lease", 20, step_s=0.0)
        wire.leader.agent.kill()
        wait_for(lambda: wire.are_only(wire.heir), "answers of the other node alone", 5 * GRACE_S + 60)
    wire.assert_one()


def test_an_agent_that_was_stopped_for_longer_than_its_programs_answer(link: Link) -> None:
    """When it continues, neither a frame nor the API server has reported to it that another node leads."""
    wire = Wire(link)
    with wire.answers:
        wait_for(lambda: wire.are_only(wire.leader), "answers of the leader", 20)
        time.sleep(11)  # it has sent its last announcement, and so causes no defence when it continues
        wire.leader.proxy.close()
        wire.leader.agent.process.send_signal(signal.SIGSTOP)
        link.switch.ip(f"link set {wire.leader.name} nomaster")
        wait_for(lambda: wire.are_only(wire.heir), "answers of the other node", 60)
        time.sleep(GRACE_S + 5)  # it has sent its last announcement, and the leader's programs have stopped
        link.switch.ip(f"link set {wire.leader.name} master br0")
        resume(wire.leader)
        time.sleep(3)
        assert wire.are_only(wire.heir)
    wire.assert_one()


def test_a_cable_that_is_back_before_the_api_server_is(link: Link) -> None:
    wire = Wire(link)
    with wire.answers:
        wait_for(lambda: wire.are_only(wire.leader), "answers of the leader", 20)
        wire.leader.proxy.close()
        link.switch.ip(f"link set {wire.leader.name} nomaster")  # the device keeps its carrier
        wait_for(lambda: wire.are_only(wire.heir), "answers of the other node", 60)
        time.sleep(11)  # it has sent its last announcement
        link.switch.ip(f"link set {wire.leader.name} master br0")
        time.sleep(3)
        assert wire.are_only(wire.heir)
    wire.assert_one()


def test_a_clock_that_is_set_by_an_hour_moves_nothing(link: Link, tmp_path: Path) -> None:
    """Forward, and back; and when that node dies another one takes over in time."""
    wire, clock = Wire(link), tmp_path / "clock"
    _set(clock, 0)
    wire.leader.agent.stop()
    wire.leader.agent.start(module="tests.kube_api.agent_with_clock", env={"LAB_CLOCK": str(clock)})
    link.until_led(VIP4, by=wire.leader)
    with wire.answers:
        wait_for(lambda: wire.are_only(wire.leader), "answers of the leader", 20)
        for hours in (1, -1):
            _set(clock, hours)
            before = link.node_lease(wire.leader)["renewTime"]
            wait_for(lambda before=before: link.node_lease(wire.leader)["renewTime"] != before, "a renewal", 60)
            end = time.monotonic() + 2 * NODE_LEASE_S
            while time.monotonic() < end:
                assert wire.heir.state(VIP4) == "standby"
                assert wire.are_only(wire.leader)
            skew = _time_of(link.node_lease(wire.leader)) - time.time()
            assert abs(skew - 3600 * hours) < 600
        wire.leader.power_off()
        wait_for(lambda: wire.are_only(wire.heir), "answers of the other node", 60)
    wire.assert_one()


def _set(clock: Path, hours: int) -> None:
    """Set the node's clock at once: the agent, which reads the file at any moment, never finds it empty."""
    new = clock.with_suffix(".new")
    new.write_text(str(3600 * hours))
    new.rename(clock)


def _time_of(lease: dict[str, str]) -> float:
    return datetime.fromisoformat(lease["renewTime"]).timestamp()
