"""One leader per address, by Leases of a real API server: two nodes on one link, and the addresses after the loss of one."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from lbagent.maps.kernel_maps import KernelMaps
from tests.kube_api.announcing_nodes import Host, Link, give_rights, take_rights
from tests.kube_api.cluster import Cluster
from tests.lab import traffic
from tests.lab.netns import filter_groups, wait_for

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.early]
VIP, VIP6 = "10.8.0.100", "fd08::101"
ALL = [f"10.8.0.{number}" for number in range(100, 110)]


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    """Two nodes whose agents run."""
    link = Link(cluster)
    try:
        for number in (1, 2):
            link.add_host(number)
        for host in link.hosts.values():
            host.agent.start()
        yield link
    finally:
        link.close()


def other(link: Link, host: Host) -> Host:
    return next(each for each in link.hosts.values() if each is not host)


def serve(link: Link, *addresses: str, **spec: object) -> Host:
    """Create a Service with the first address and an endpoint on each node; return the leader."""
    for number, address in enumerate(addresses):
        link.serve(f"web{number}", address, hosts=list(link.hosts.values()), **spec)
    return link.until_led(addresses[0])


def answers(link: Link, address: str) -> bool:
    try:
        return bool(link.client.call(traffic.http_get, address, 80, timeout_s=1.0))
    except OSError:
        return False


def former_leader_ends_at(host: Host) -> int:
    """Return until when the programs have the previous leader, in ns of CLOCK_MONOTONIC."""
    with KernelMaps.open(str(host.bpffs), create=False) as maps:
        ((_, value),) = maps.items("lb_former_leader")
    return int(struct.unpack_from("=Q", value)[0])


def test_one_node_leads_and_the_lease_says_which(link: Link) -> None:
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    assert link.mac_of(VIP) == leader.node.mac("eth0").hex(":")
    assert link.lease(VIP)["holderIdentity"] == leader.name
    standby = other(link, leader)
    row = standby.vips()[VIP]
    assert (row["state"], row["node"], row["reason"]) == ("standby", leader.name, f"{leader.name} announces it")
    assert standby.agent.cli("vip", "why", VIP).returncode == 0
    assert standby.agent.cli("vip", "why", "default/web0").stdout.startswith(
        f"{VIP} (l2, pool lan): announced from {leader.name}"
    )


def test_when_the_cable_is_pulled_the_other_node_takes_over(link: Link) -> None:
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    heir = other(link, leader)
    link.set_endpoints("web0", [heir])
    leader.proxy.close()  # the API server is behind the same cable
    leader.pull_cable()
    link.until_led(VIP, by=heir)
    wait_for(lambda: answers(link, VIP), "an answer of the other node", 20)
    assert link.mac_of(VIP) == heir.node.mac("eth0").hex(":")
    assert "lbagent_vip_takeovers_total 1" in heir.agent.api.metrics()


def test_a_switch_that_filters_by_mld_passes_who_asks_for_the_address_to_its_leader(link: Link) -> None:
    filter_groups(link.switch)
    time.sleep(3)  # until the switch filters: before the end of its first query it passes every group to all
    link.serve("web6", VIP6, hosts=[], ipFamilies=["IPv6"])
    leader = link.until_led(VIP6)

    def is_found_at(host: Host) -> bool:
        link.client.ip("neigh flush dev eth0 nud all")
        answers(link, VIP6)
        return link.mac_of(VIP6) == host.node.mac("eth0").hex(":")

    wait_for(lambda: is_found_at(leader), "the leader", 20)
    link.cordon(leader)
    heir = link.until_led(VIP6, by=other(link, leader))
    for _ in range(5):
        wait_for(lambda: is_found_at(heir), "the next leader", 20)


def test_when_the_leader_is_cordoned_no_connection_fails(link: Link) -> None:
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    heir = other(link, leader)
    with link.load(VIP, timeout_s=5.0) as load:
        load.wait_more(50)
        link.cordon(leader)
        link.until_led(VIP, by=heir)
        load.wait_more(100)
    assert load.tally.failures == []
    assert leader.vips()[VIP]["reason"] == "the node is cordoned"
    link.cordon(leader, undo=True)
    link.until_led(VIP, by=leader)  # it gets its share again


def test_the_address_leaves_a_node_whose_only_endpoint_is_in_maintenance(link: Link) -> None:
    """The operator sets the state at one agent only; the others read in its Lease that it does not serve the address."""
    leader = serve(link, VIP, externalTrafficPolicy="Local")
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    heir = other(link, leader)
    talkers = link.talkers(VIP)
    with link.load(VIP, timeout_s=5.0) as load:
        load.wait_more(50)
        leader.agent.cli("backend", "set-state", "maintenance", f"{leader.pod_address}:8080")
        link.until_led(VIP, by=heir)
        load.wait_more(50)
        assert link.lease(VIP)["holderIdentity"] == heir.name
        assert talkers.ask() == talkers.first, "connections of before go on"
        transitions = link.lease(VIP)["leaseTransitions"]
        load.wait_more(300)  # some seconds: it does not move back and forth
        assert link.lease(VIP)["leaseTransitions"] == transitions
        leader.agent.cli("backend", "clear-state", f"{leader.pod_address}:8080")
        link.until_led(VIP, by=leader)
        load.wait_more(50)
    talkers.close()
    assert load.tally.failures == []


def test_under_policy_cluster_a_node_whose_programs_serve_nothing_leaves_the_address_to_another(link: Link) -> None:
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    backends = [f"{host.pod_address}:8080" for host in link.hosts.values()]
    leader.agent.cli("backend", "set-state", "maintenance", *backends, "--yes")
    link.until_led(VIP, by=other(link, leader))
    wait_for(lambda: answers(link, VIP), "an answer of the other node", 20)
    leader.agent.cli("backend", "clear-state", *backends)
    link.until_led(VIP, by=leader)


def test_open_connections_outlive_the_move_of_their_address(link: Link) -> None:
    """Also back: then only one node has the connections of both. Of pods of either node, with and without the clients' addresses."""
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    heir = other(link, leader)
    before = link.talkers(VIP)
    assert set(before.first) == set(link.hosts)
    link.cordon(leader)
    link.until_led(VIP, by=heir)
    wait_for(
        lambda: link.mac_of(VIP) == heir.node.mac("eth0").hex(":"), "the new leader in the client's neighbour table", 20
    )
    between = link.talkers(VIP)
    first_end = former_leader_ends_at(heir)
    wait_for(
        lambda: time.monotonic_ns() > first_end, "the end that was written first", 20
    )  # extended: the node is alive
    assert before.ask() == before.first
    assert between.ask() == between.first
    assert (
        f"existing connections are forwarded to the previous leader {leader.name}"
        in heir.agent.cli("vip", "why", VIP).stdout
    )
    assert "fwd_former_leader" in heir.agent.api.metrics()
    link.cordon(leader, undo=True)
    link.until_led(VIP, by=leader)
    wait_for(lambda: link.mac_of(VIP) == leader.node.mac("eth0").hex(":"), "the first leader", 20)
    assert before.ask() == before.first
    assert between.ask() == between.first


def test_the_end_of_an_agent_moves_nothing_until_its_programs_stop(link: Link) -> None:
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    heir = other(link, leader)
    with link.load(VIP, timeout_s=5.0) as load:
        load.wait_more(50)
        leader.agent.kill()
        wait_for(lambda: link.leader(VIP) is heir, "the other node", 60)
        load.wait_more(100)
    assert load.tally.failures == []
    leader.agent.start()
    link.until_led(VIP, by=leader)


def test_an_outage_of_the_api_server_withdraws_nothing(link: Link) -> None:
    leader = serve(link, VIP)
    wait_for(lambda: answers(link, VIP), "an answer", 20)
    plane = link.cluster.plane
    with link.load(VIP, timeout_s=5.0) as load:
        plane.kill()
        try:
            load.wait_more(200, 15)
            wait_for(lambda: other(link, leader).agent.cli("status", check=False).returncode != 0, "a problem", 60)
            assert leader.state(VIP) == "announced"
            assert other(link, leader).state(VIP) == "standby"
        finally:
            plane.start()
        load.wait_more(200, 15)
    assert load.tally.failures == []
    assert link.until_led(VIP) is leader


def test_addresses_are_spread_and_a_stranger_s_address_is_told_of(link: Link) -> None:
    link.client.ip("addr add 10.8.0.150/32 dev eth0")
    serve(link, *ALL, "10.8.0.150")
    for address in ALL:
        link.until_led(address)
    leaders = [link.leader(address) for address in ALL]
    assert len(set(leaders)) == 2
    wait_for(lambda: any(host.state("10.8.0.150") == "conflict" for host in link.hosts.values()), "the conflict", 20)
    wait_for(lambda: "AddressInUse" in {event["reason"] for event in link.cluster.events()}, "the Event", 20)
    events = [each for each in link.cluster.events() if each["reason"] == "AddressInUse"]
    assert len(events) <= len(link.hosts)  # one per node: on a busy machine the address may move to the other one
    for event in events:
        assert event["involvedObject"]["name"] == f"web{len(ALL)}"
        assert link.client.mac("eth0").hex(":") in event["message"]


def test_in_peace_a_node_writes_once_a_second_however_many_addresses_there_are(link: Link) -> None:
    serve(link, *ALL)
    for address in ALL:
        link.until_led(address)
    time.sleep(3)
    before, began = writes(link), time.monotonic()
    time.sleep(10)
    assert writes(link) - before <= len(link.hosts) * (time.monotonic() - began + 1)


def writes(link: Link) -> int:
    return sum(request.verb in ("create", "update", "patch", "delete") for request in link.cluster.plane.requests())


def test_without_the_rights_it_says_so(cluster: Cluster) -> None:
    link = Link(cluster)
    try:
        host = link.add_host(1)
        take_rights(cluster)
        host.agent.start()
        link.serve("web0", VIP, hosts=[host])
        wait_for(lambda: "403 Forbidden" in host.agent.cli("vip", "why", VIP, check=False).stdout, "the reason", 60)
        assert "deploy/cloud/announce.yaml for the rights" in host.agent.cli("vip", "why", VIP, check=False).stdout
        assert any(text.startswith("Leases cannot be used") for text in host.agent.json("status")["problems"])
        give_rights(cluster)
        link.until_led(VIP)
    finally:
        link.close()
