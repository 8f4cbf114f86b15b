"""An announced address has moved to this node: segments of earlier connections are forwarded to the previous leader, all others are balanced here."""

from __future__ import annotations

import pytest

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, Family
from tests.packet.test_fragment_places import framed
from tests.packet.test_fragments import as_tcp, pieces, wire_destination
from tests.packet.world import TC_EGRESS, TCP, UDP, XDP, BackendRow, Outcome, World

FORMER_MAC, OTHER_MAC = "02:00:00:00:0b:01", "02:00:00:00:0b:02"


@pytest.fixture
def heir(loaded_announcing_world: World) -> World:
    """Return a node that another one has given the VIPs to, with a backend for each protocol."""
    world = loaded_announcing_world
    world.reset()
    for fam in craft.FAMILIES.values():
        world.vip("lb_vip", fam, fam.vip, NODE_MAC)
        world.vip("lb_former_leader", fam, fam.vip, FORMER_MAC)
        for proto in (TCP, UDP):
            serve(world, fam, fam.vip, proto)
    return world


def serve(world: World, fam: Family, vip: str, proto: int = TCP) -> BackendRow:
    backend = world.backend(fam, fam.remote(1), 8080, proto)
    world.service(fam, vip, 80, proto, [backend])
    return backend


def segment(fam: Family, flags: str, *, sport: int = 40000, ttl: int = 64, **kw: object) -> bytes:
    return craft.frame(craft.tcp(fam, fam.client, sport, fam.vip, 80, flags, ttl=ttl), **kw)  # type: ignore[arg-type]


def assert_sent_on(outcome: Outcome, frame: bytes) -> None:
    """Assert that the previous leader gets the frame unchanged except for the hop count."""
    assert outcome.forwarded, outcome
    wanted = expect.translated(frame, hop=1, smac=NODE_MAC, dmac=FORMER_MAC)
    assert outcome.packet == wanted, expect.difference(outcome.packet, wanted)
    assert outcome.counted == {Reason.FWD_FORMER_LEADER: 1}


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R", "RA", "SA"])
def test_a_segment_that_is_no_first_one_goes_on(heir: World, fam: Family, hook: str, flags: str) -> None:
    frame = segment(fam, flags)
    for _ in range(2):  # it leaves no flow behind
        assert_sent_on(heir.run(hook, frame), frame)


def test_a_connection_that_begins_here_stays_here(heir: World, fam: Family, hook: str) -> None:
    for flags in ("S", "A", "PA", "FA"):
        outcome = heir.run(hook, segment(fam, flags))
        assert expect.destination(outcome) == (fam.remote(1), 8080), flags
    lost = segment(fam, "A", sport=40001)
    assert_sent_on(heir.run(hook, lost), lost)


def test_datagrams_are_balanced_here(heir: World, fam: Family, hook: str) -> None:
    """The first datagram of an exchange looks like the others."""
    outcome = heir.run(hook, craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 80)))
    assert expect.destination(outcome) == (fam.remote(1), 8080)


def test_only_of_that_address_that_device_and_that_time(heir: World, fam: Family, hook: str) -> None:
    serve(heir, fam, fam.vip2)
    balanced = (fam.remote(1), 8080)
    other = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip2, 80, "A"))
    assert expect.destination(heir.run(hook, other)) == balanced
    frame = segment(fam, "A", dst=craft.NODE2_MAC)
    assert expect.destination(heir.run(hook, frame, heir.net.lb1)) == balanced
    heir.forget_flows()
    heir.vip("lb_former_leader", fam, fam.vip, FORMER_MAC, seconds=-0.1)
    assert expect.destination(heir.run(hook, segment(fam, "A"))) == balanced


def test_a_port_without_a_service_is_no_matter_of_the_former_leader(heir: World, fam: Family, hook: str) -> None:
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 81, "A"))
    expect.untouched(heir.run(hook, frame), frame)


def test_each_byte_of_the_former_leader_s_mac_address_counts(heir: World, fam: Family) -> None:
    """A program of tc sees it once more where it leaves, and lets it go; what leaves to another host is a request of this node."""
    sent = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, "A"), src=NODE_MAC, dst=FORMER_MAC)
    expect.untouched(heir.run(TC_EGRESS, sent), sent)
    for at in range(6):
        changed = sent[:at] + bytes([sent[at] ^ 2]) + sent[at + 1 :]
        assert expect.destination(heir.run(TC_EGRESS, changed)) == (fam.remote(1), 8080), at
        heir.forget_flows()


@pytest.mark.parametrize("ttl", [0, 1])
def test_without_a_hop_left_it_is_the_stack_s(heir: World, fam: Family, hook: str, ttl: int) -> None:
    """So two nodes that take each other for the previous leader do not forward it in a loop."""
    frame = segment(fam, "A", ttl=ttl)
    outcome = heir.run(hook, frame)
    expect.untouched(outcome, frame)
    assert outcome.counted == {Reason.PASS_TTL: 1}
    last = segment(fam, "A", ttl=2)
    assert_sent_on(heir.run(hook, last), last)


def test_a_tagged_one_is_of_another_link(heir: World, fam: Family) -> None:
    frame = segment(fam, "A", vlans=(7,))
    assert heir.run(XDP, frame).counted.get(Reason.FWD_FORMER_LEADER, 0) == 0


def test_fragments_stay_here(heir: World, fam: Family, hook: str) -> None:
    """A later fragment has no flags that show a later segment, so neither is forwarded; both go to one backend."""
    for packet in pieces(fam, fam.client, 40000, fam.vip, 80):
        outcome = heir.run(hook, framed(as_tcp(fam, packet), src=craft.ROUTER_MAC, dst=NODE_MAC))
        assert wire_destination(fam, outcome) == fam.remote(1)
        assert outcome.counted[Reason.FWD_FORMER_LEADER] == 0


def test_what_xdp_cannot_send_tc_does(heir: World, fam: Family) -> None:
    heir.device(heir.net.lb0, 0, NODE_MAC)
    frame = segment(fam, "A")
    assert_sent_on(expect.handed_over(heir, frame), frame)


@pytest.mark.parametrize("ttl", [1, 64])
def test_an_error_about_such_a_connection_goes_on(heir: World, fam: Family, hook: str, ttl: int) -> None:
    """A router on the client's path reports its MTU about a reply that the other node sent (RFC 1191, RFC 8201)."""
    reply = craft.tcp(fam, fam.vip, 80, fam.client, 40000, "A", load=b"x" * 40)
    error = craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1320), bytes(reply), ttl=ttl)
    frame = craft.frame(error)
    outcome = heir.run(hook, frame)
    if ttl == 1:
        expect.untouched(outcome, frame)
        assert outcome.counted == {Reason.PASS_TTL: 1}
    else:
        assert_sent_on(outcome, frame)


def test_an_error_about_a_connection_of_this_node_stays_here(heir: World, fam: Family, hook: str) -> None:
    heir.run(hook, segment(fam, "S"))
    reply = craft.tcp(fam, fam.vip, 80, fam.client, 40000, "A", load=b"x" * 40)
    error = craft.frame(craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1320), bytes(reply)))
    assert heir.run(hook, error).counted == {Reason.FWD_ICMP: 1}


def test_an_error_about_a_datagram_of_no_flow_stays_here(heir: World, fam: Family, hook: str) -> None:
    reply = craft.udp(fam, fam.vip, 80, fam.client, 40000, load=b"x" * 40)
    error = craft.frame(craft.icmp_error(fam, fam.router, fam.vip, fam.too_big(1320), bytes(reply)))
    expect.untouched(heir.run(hook, error), error)


def test_without_announcements_nothing_of_it_is_asked(world: World, fam: Family, hook: str) -> None:
    world.vip("lb_former_leader", fam, fam.vip, FORMER_MAC)
    serve(world, fam, fam.vip)
    assert expect.destination(world.run(hook, segment(fam, "A"))) == (fam.remote(1), 8080)
