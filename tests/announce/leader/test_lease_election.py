"""The effects of Leases in the announcer, without a server: when all addresses must be decided again."""

from __future__ import annotations

import asyncio
import json

import pytest

from lbagent.announce.announcer import lease_status_of
from lbagent.announce.desired_vips import DesiredVip
from lbagent.announce.l2.vip_machine import PROBE_S
from lbagent.announce.leader.lease_election import (
    ANOTHER_NODE,
    MACS,
    MAX_WITHHELD,
    NETWORKS,
    WITHHELD,
    LeaseElection,
    vip_lease,
    vip_of_lease,
)
from lbagent.kube.leases import Lease, LeaseSpec
from lbagent.kube.object_cache import metadata_of
from lbagent.model.address import format_ip, parse_ip


def lease(renewed: str, networks: str = "10.0.0.0/24", withheld: str = "") -> Lease:
    spec = LeaseSpec(lease_duration_seconds=2, renew_time=renewed)
    return Lease({"annotations": {NETWORKS: networks, WITHHELD: withheld}}, spec)


def election() -> LeaseElection:
    """Return an election that read its own Lease and that of `b` at the time 0."""
    found = LeaseElection(None, "a", 2.0)  # type: ignore[arg-type]
    for node in ("a", "b"):
        found._take_node(node, lease("1"), 0.0)
    return found


def test_a_renewal_is_no_news() -> None:
    one = election()
    before = one.state(0.5)
    one._take_node("b", lease("2"), 1.0)
    assert one.state(1.0) == before


def test_what_a_node_reaches_its_overdue_lease_and_its_end_are_news() -> None:
    one = election()
    one._take_node("a", lease("2"), 1.5)
    states = [one.state(1.6), one.state(2.0 - PROBE_S), one.state(2.0)]
    assert len(set(states)) == 3
    one._take_node("b", lease("2"), 2.1)
    assert one.state(2.1) == states[0]
    one._take_node("b", lease("2", "10.1.0.0/24"), 2.2)
    assert one.state(2.2) not in states
    assert one.nodes_reaching(parse_ip("10.0.0.9"), 2.2) == {"a"}
    assert one.nodes_reaching(parse_ip("10.1.0.9"), 2.2) == {"b"}
    one._take_node("a", lease("3", "10.1.0.0/24"), 2.2)
    assert one.nodes_reaching(parse_ip("10.1.0.9"), 2.2) == {"a", "b"}
    one._take_node("a", lease("4", "10.1.0.0/24"), 4.0)
    assert one.nodes_reaching(parse_ip("10.1.0.9"), 4.3) == {"a"}


def test_the_addresses_of_a_dead_node_move_although_its_lease_is_valid() -> None:
    one, address = election(), parse_ip("10.0.0.9")
    vip = DesiredVip(address, "lan", ("l2",), ("ns/web",), has_endpoint=True)
    before = one.state(0.5)
    assert one.nodes_reaching(address, 0.5) == {"a", "b"}
    one.set_dead_nodes(frozenset({"b"}))
    assert one.state(0.5) != before, "each address is decided about again"
    view = lease_status_of(one, "a", vip, 0.5, eligible=True, served=True)
    assert view.preferred == "a"
    one.set_dead_nodes(frozenset())
    assert one.state(0.5) == before
    assert one.nodes_reaching(address, 0.5) == {"a", "b"}


def test_a_node_does_not_lead_for_an_address_that_its_programs_do_not_serve() -> None:
    one, address = election(), parse_ip("10.0.0.9")
    before = one.state(0.5)
    one._take_node("b", lease("2", withheld="10.0.0.9 fd00::9"), 0.5)
    assert one.state(0.5) != before, "each address is decided about again"
    assert one.nodes_reaching(address, 0.6) == {"a"}
    assert one.nodes_reaching(parse_ip("10.0.0.8"), 0.6) == {"a", "b"}
    one._take_node("b", lease("3"), 0.7)
    assert one.nodes_reaching(address, 0.8) == {"a", "b"}


def test_under_policy_cluster_a_node_that_does_not_serve_leaves_the_address_to_one_that_does() -> None:
    one, address = election(), parse_ip("10.0.0.9")
    vip = DesiredVip(address, "lan", ("l2",), ("ns/web",), has_endpoint=True)
    view = lease_status_of(one, "a", vip, 0.5, eligible=True, served=False)
    assert (view.eligible, view.preferred) == (False, "b")
    one._take_node("b", lease("2", withheld="10.0.0.9"), 0.6)
    view = lease_status_of(one, "a", vip, 0.6, eligible=True, served=False)
    assert (view.eligible, view.preferred) == (True, "a"), "no node serves it: clients are answered that there is none"
    without = DesiredVip(address, "lan", ("l2",), ("ns/web",), has_endpoint=False)
    assert lease_status_of(election(), "a", without, 0.5, eligible=True, served=False).eligible


async def test_what_is_withheld_is_published_with_a_bound_and_a_gift_of_an_address_waits_for_it() -> None:
    one = election()
    one.duration_s = 0.05
    many = [(10 << 24 | number).to_bytes(4) for number in range(MAX_WITHHELD + 10)]
    one.publish(["10.0.0.0/8"], [], many)
    assert one._published is not None
    assert one._published.withheld.split()[:2] == ["10.0.0.0", "10.0.0.1"]
    assert len(one._published.withheld.split()) == MAX_WITHHELD
    waiting = asyncio.create_task(one.until_published())
    await asyncio.sleep(0)
    assert not waiting.done()
    one._is_written.set()
    await waiting
    one.publish(["10.0.0.0/8"], [], [])
    await one.until_published()  # the server does not answer: it ends anyway
    assert not one._is_written.is_set()


def test_that_the_server_is_not_seen_any_more_is_news() -> None:
    one = election()
    one._take_node("b", lease("2"), 1.9)
    assert one.state(1.9)[0] is True
    assert one.state(2.0)[0] is False


def put(one: LeaseElection, name: str, holder: str) -> None:
    meta = {"name": name, "namespace": "kube-system", "resourceVersion": "1", "uid": name}
    raw = json.dumps({"metadata": meta, "spec": {"holderIdentity": holder}}).encode()
    one._cache.put(raw, metadata_of(raw))


def test_leases_are_left_over_when_their_holders_are_dead_and_no_service_has_the_address() -> None:
    one = election()
    wanted, gone, led = (parse_ip(f"10.0.0.{number}") for number in (1, 2, 3))
    for address, holder in ((wanted, "b"), (gone, "b"), (led, "a")):
        put(one, vip_lease(address), holder)
    put(one, "lbagent-node-a", "a")
    put(one, "lbagent-node-b", "b")

    for second in range(604):
        one._take_node("a", lease(f"renewed {second}"), float(second))
        found = sorted(one.leftovers([wanted], float(second), 30.0))
        expected = ["lbagent-vip-10.0.0.2"] if second >= 32 else []
        assert found == (["lbagent-node-b"] if second >= 602 else []) + expected, second

    assert one.leftovers([wanted], 700.0, 30.0) == [], "what the server has is not known"


def test_one_of_the_live_nodes_deletes_what_is_left() -> None:
    names = [vip_lease(parse_ip(f"10.0.0.{number}")) for number in range(20)]
    found = []
    for own in ("a", "b"):
        one = LeaseElection(None, own, 2.0)  # type: ignore[arg-type]
        for second in range(42):
            for node in ("a", "b"):
                one._take_node(node, lease(f"renewed {second}"), float(second))
        for name in names:
            put(one, name, "dead")
        found.append(one.leftovers([], 41.0, 30.0))
    assert sorted(found[0] + found[1]) == sorted(names)
    assert all(found)


def test_before_the_leases_are_read_any_host_may_be_a_node() -> None:
    one, mac = LeaseElection(None, "a", 2.0), b"\2\0\0\0\0\1"  # type: ignore[arg-type]
    assert one.node_of(mac) == ANOTHER_NODE
    one._take_node("b", Lease({"annotations": {MACS: "02:00:00:00:00:02"}}, LeaseSpec(renew_time="1")), 0.0)
    assert one.node_of(mac) == ""
    assert one.node_of(b"\2\0\0\0\0\2") == "b"


def test_a_clock_that_is_an_hour_off_makes_no_difference() -> None:
    """Only the texts of a renewal are compared: each node uses its own steady clock."""
    one = election()
    for second, renewed in enumerate(("2026-01-01T12:00:01Z", "2026-01-01T13:00:02Z", "2026-01-01T11:00:03Z"), 1):
        one._take_node("a", lease(f"renewed {second}"), float(second))
        one._take_node("b", lease(renewed), float(second))
        assert one.dead_s("b", float(second)) == -2.0
    assert one.dead_s("b", 5.5) == 0.5


def test_the_name_of_an_address_s_lease_has_dashes_for_colons() -> None:
    assert vip_lease(parse_ip("10.0.0.9")) == "lbagent-vip-10.0.0.9"
    assert vip_lease(parse_ip("fd00::9")) == "lbagent-vip-fd00-0000-0000-0000-0000-0000-0000-0009"


@pytest.mark.parametrize("text", ["10.0.0.9", "255.255.255.255", "fd00:77::200"])
def test_the_lease_of_an_address_names_it(text: str) -> None:
    assert format_ip(vip_of_lease(vip_lease(parse_ip(text)))) == text


@pytest.mark.parametrize(
    "name", ["lbagent-node-10.0.0.9", "lbagent-vip-", "lbagent-vip-a", "x-lbagent-vip-10.0.0.9", ""]
)
def test_no_other_lease_does(name: str) -> None:
    assert vip_of_lease(name) == b""
