"""One client port has a connection to a frontend and at the same time one directly to its pod: both are right. TCP only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from scapy.packet import Packet

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.caller import Caller, Endpoint, sweep
from tests.packet.clock import TimedWorld, ticks_of
from tests.packet.craft import LOCAL_MAC, NODE_MAC, POD_MAC, Family
from tests.packet.harness import open_world
from tests.packet.test_icmp import check_error, l3, with_hops_of
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, XDP, BackendRow, Outcome, World

PORT = 40000
SAME_MARK = PORT ^ 0x10  # docs/datapath.md: ports of one mark differ in the upper half of their lower byte alone


@dataclass
class Direct:
    """The client's connection to the pod itself. `source`: the source address that the pod sees."""

    world: World
    pod: BackendRow
    client: str
    port: int = PORT
    hook: str = XDP
    source: Endpoint = field(default=("", 0))
    sent: bytes = b""

    def send(self, flags: str = "A") -> Outcome:
        """Send a segment to the pod; it must get there."""
        packet = craft.tcp(self.pod.family, self.client, self.port, *self.pod.endpoint, flags)
        self.sent = craft.frame(packet)
        out = self.world.run(self.hook, self.sent)
        assert not out.dropped
        assert expect.destination(out) == self.pod.endpoint
        self.source = expect.source(out)
        return out

    def passes(self, flags: str = "A", counted: int = 0) -> bool:
        """Send a segment; return whether it passes untouched, with so many packets counted."""
        out = self.send(flags)
        return out.passed and out.packet == self.sent and sum(out.counted.values()) == counted

    @property
    def has_snat_port(self) -> bool:
        """Whether the pod saw the node in place of the client."""
        return self.source[0] == self.pod.family.node and self.source[1] in expect.SNAT_PORTS

    def is_answered(self, flags: str = "A") -> bool:
        """Let the pod answer; return whether this client receives it from the pod, also behind tc_egress of the device it leaves by."""
        out = expect.at_pod(self.world, expect.local_reply(self.pod.family, TCP, self.pod, *self.source, flags))
        ends = expect.source(out), expect.destination(out)
        left = self.world.run(TC_EGRESS, out.packet, self.world.net.lb0, came_by=self.world.net.pod0)
        expect.untouched(left, out.packet)
        return not out.dropped and ends == (self.pod.endpoint, (self.client, self.port))

    def open(self) -> None:
        """Do the handshake, from one source, and exchange data."""
        self.send("S")
        source = self.source
        assert self.is_answered("SA")
        for flags in ("A", "PA"):
            self.send(flags)
            assert self.source == source
        assert self.is_answered("PA")


@dataclass
class Scene:
    """A client port, its connection to a frontend (`caller`), and to the pod that is its only backend (`direct`)."""

    caller: Caller
    pod: BackendRow
    direct: Direct

    def both_are_right(self) -> None:
        """Continue both connections; each packet arrives as before, each answer has the right source."""
        source = self.direct.source
        for _ in range(2):
            assert self.caller.stays("PA")
            self.direct.send("PA")
            assert self.direct.source == source
            assert self.direct.is_answered("PA")
            assert self.caller.is_answered("PA")


def scene(world: World, fam: Family, hook: str, *, client: str = "", host: bool = False) -> Scene:
    """Enter a service of TCP with one backend on this node."""
    pod = world.backend(fam, fam.node if host else fam.local(1), 8080, TCP, local=True, host=host)
    service = world.service(fam, fam.vip, 80, TCP, [pod])
    caller = Caller(world, service, client or fam.client, PORT, hook)
    return Scene(caller, pod, Direct(world, pod, caller.client, PORT, hook))


@pytest.fixture
def one(world: World, fam: Family, hook: str) -> Scene:
    """A service whose connection is established, from the client's own address."""
    made = scene(world, fam, hook)
    made.caller.establish()
    assert made.caller.source == made.caller.endpoint
    return made


def test_the_frontend_first(one: Scene) -> None:
    """The pod has a connection of the client's port; the direct one reaches it from a SNAT port."""
    assert one.direct.send("S").counted[Reason.FWD_NEW] == 1
    assert one.direct.has_snat_port
    one.direct.open()
    assert one.direct.has_snat_port
    one.both_are_right()
    assert one.caller.source == one.caller.endpoint


def test_a_syn_that_is_sent_again(one: Scene) -> None:
    """It is the same connection, and one on an established flow leaves that established."""
    one.direct.send("S")
    source = one.direct.source
    one.direct.send("S")
    assert one.direct.source == source
    one.direct.open()
    one.direct.send("S")
    assert one.direct.source == source
    assert {flow.state for flow in table.flows(one.caller.world, one.pod.family)} == {table.EST}
    one.both_are_right()


def test_before_the_handshake_is_over(world: World, fam: Family, hook: str) -> None:
    """A SYN to the frontend is enough."""
    one = scene(world, fam, hook)
    one.caller.send("S")
    one.direct.send("S")
    assert one.direct.has_snat_port
    assert one.caller.is_answered("SA")
    assert one.direct.is_answered("SA")
    assert one.caller.stays()
    one.direct.send()
    one.both_are_right()


def test_no_other_connection_of_the_port(world: World, fam: Family, hook: str) -> None:
    """A direct connection passes untouched and leaves nothing behind: its SYN is counted, no other segment is."""
    direct = scene(world, fam, hook).direct
    assert direct.passes("S", counted=1)
    assert direct.is_answered("SA")
    assert all(direct.passes(flags) for flags in ("A", "PA", "FA", "R"))
    assert table.flows(world, fam) == []


def test_what_does_not_collide(one: Scene) -> None:
    """Another client port, another client: beside a living flow they pass untouched."""
    world, fam = one.caller.world, one.pod.family
    for client, port in ((fam.client2, PORT), (fam.client, PORT + 1)):
        other = Direct(world, one.pod, client, port, one.caller.hook)
        assert other.passes("S", counted=1)
        assert other.passes("A")
    other_port = world.backend(fam, one.pod.address, 9090, TCP, local=True)
    assert Direct(world, other_port, fam.client, PORT, one.caller.hook).passes("S", counted=1)


def test_the_frontends_connection_ends_first(one: Scene) -> None:
    """The direct one continues from its SNAT port, also beside the next one through the frontend."""
    one.direct.open()
    for flags in ("FA", "R"):
        one.caller.send(flags)
        one.caller.answer(flags)
    one.direct.send("PA")
    assert one.direct.has_snat_port
    assert one.direct.is_answered("PA")
    one.caller.establish()
    assert one.caller.source == one.caller.endpoint
    one.both_are_right()


def test_the_direct_connection_ends_first(one: Scene) -> None:
    """The frontend's continues; a new direct one is opened like the first one."""
    one.direct.open()
    one.direct.send("FA")
    assert one.direct.is_answered("FA")
    one.direct.send("A")
    assert one.caller.stays("PA")
    assert one.caller.is_answered("PA")
    one.direct.open()
    assert one.direct.has_snat_port
    one.both_are_right()


def test_where_the_frontends_connection_has_just_ended(one: Scene) -> None:
    """The pod may still wait (TIME_WAIT) with numbers that a direct SYN need not fit: it comes from another port."""
    one.caller.send("FA")
    one.caller.answer("FA")
    one.direct.open()
    assert one.direct.has_snat_port


def test_both_flows_expire(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Then nothing is left, and the next direct connection has the client's own port; its mark goes with its first packet."""
    world = still_world.reset()
    one = scene(world, fam, hook)
    one.caller.establish()
    one.direct.open()
    assert Direct(world, one.pod, fam.client2, SAME_MARK, hook).passes("PA", counted=1)
    still_world.clock.pass_ticks(ticks_of(ProgramSettings().timeout_tcp_s) + 4)
    still_world.sweep(fam)
    assert (table.flows(world, fam), table.held_slots(world, fam)) == ([], 0)
    assert one.direct.passes("S", counted=1)
    assert one.direct.passes("PA")


def test_a_syn_that_comes_once_more_does_not_end_the_mark_early(
    still_world: TimedWorld, fam: Family, hook: str
) -> None:
    """Its time-out is that of a flow without an answer; the connection that is open lives longer."""
    one = scene(still_world.reset(), fam, hook)
    one.caller.establish()
    one.direct.open()
    one.direct.send("S")
    still_world.clock.pass_ticks(ticks_of(ProgramSettings().timeout_new_s) + 8)
    assert Direct(still_world.world, one.pod, fam.client2, SAME_MARK, hook).passes("PA", counted=1)
    one.both_are_right()


def test_the_sweeper_leaves_it(one: Scene) -> None:
    """Its flow has no frontend that could be removed."""
    one.direct.open()
    for _ in range(2):
        sweep(one.caller.world, one.pod.family)
        one.both_are_right()


def test_the_service_goes(one: Scene) -> None:
    """The frontend's client gets a RST; the direct connection is not affected."""
    world = one.caller.world
    one.direct.open()
    source = one.direct.source
    world.remove_service(one.caller.service)
    sweep(world, one.pod.family)
    assert one.caller.send("PA").counted == {Reason.REJECT_SERVICE_GONE: 1}
    one.direct.send("PA")
    assert one.direct.source == source
    assert one.direct.is_answered("PA")


def test_the_backend_goes(one: Scene) -> None:
    """Segments pass untouched, and the pod answers them; those of the pod are not translated."""
    one.direct.open()
    one.caller.world.remove_backend(one.pod)
    assert all(one.direct.passes(flags, counted=1) for flags in ("PA", "S", "A", "FA"))


def test_a_backend_in_maintenance(one: Scene) -> None:
    """It takes no new flow of a frontend, but direct connections are independent of Services."""
    one.caller.world.path_flags(one.pod, clear=4)
    one.direct.open()
    assert one.direct.has_snat_port
    one.direct.open()
    one.both_are_right()


@pytest.fixture(scope="module")
def narrow() -> Iterator[World]:
    """Load programs with one SNAT port."""
    with open_world(ProgramSettings(snat_port_min=2000, snat_port_max=2000)) as world:
        yield world


def test_without_a_free_snat_port(narrow: World, fam: Family, hook: str) -> None:
    """The direct SYN passes as if there were no programs; the flow that has the port keeps it, once it is established."""
    narrow.reset()
    one = scene(narrow, fam, hook)
    one.caller.establish()
    one.direct.open()
    second = Caller(narrow, one.caller.service, fam.client2, PORT, hook)
    second.establish()
    table.later(narrow, fam, 3 * table.SLOT_UNIT)
    other = Direct(narrow, one.pod, fam.client2, PORT, hook)
    assert other.passes("S", counted=1)
    assert other.passes("S", counted=1)
    one.both_are_right()
    assert second.stays("PA")


def test_a_full_bucket(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The direct connection cannot do without an entry: it lies in the spill map."""
    world = still_world.reset()
    one = scene(world, fam, hook)
    one.caller.establish()
    for n in range(1, 4):
        Caller(world, one.caller.service, fam.client, PORT + n, hook).establish()
    assert one.direct.send("S").counted[Reason.FWD_SPILL] == 1
    one.direct.open()
    assert one.direct.has_snat_port
    one.both_are_right()


def test_what_xdp_cannot_send(world: World, fam: Family) -> None:
    """The pod's device takes no frames from XDP: the SYN and all that follows is tc's."""
    pod = world.backend(
        fam, fam.local(1), 8080, TCP, local=True, nexthop=world.nexthop(world.net.pod0, LOCAL_MAC, POD_MAC, xdp=False)
    )
    caller = Caller(world, world.service(fam, fam.vip, 80, TCP, [pod]), fam.client, PORT, XDP)
    caller.establish()
    for flags in "SA":
        frame = craft.frame(craft.tcp(fam, fam.client, PORT, *pod.endpoint, flags))
        out = expect.handed_over(world, frame)
        assert out.forwarded
        assert expect.source(out)[0] == fam.node
        answer = expect.at_pod(world, expect.local_reply(fam, TCP, pod, *expect.source(out), "SA"))
        assert (expect.source(answer), expect.destination(answer)) == (pod.endpoint, (fam.client, PORT))


def test_a_process_of_the_node(world: World, fam: Family, hook: str) -> None:
    """It has no other source address: both pass unchanged."""
    one = scene(world, fam, hook, host=True)
    one.caller.send("S")
    assert one.direct.passes("S", counted=1)  # the address is the node's own: looked at as a reply's
    assert one.direct.passes("PA", counted=1)
    assert one.caller.stays()


def test_a_device_over_another_one(one: Scene) -> None:
    """What comes in by a VLAN may be the frontend's, translated on the device under it."""
    one.caller.world.device(one.caller.world.net.lb0, DeviceFlag.XDP_SEND | DeviceFlag.STACKED, NODE_MAC)
    assert one.direct.passes("S")
    assert one.caller.stays()


@pytest.mark.parametrize("pod_client", [False, True], ids=["client", "pod"])
def test_on_its_way_out(world: World, fam: Family, *, pod_client: bool) -> None:
    """What leaves by the pod's device was translated where it came in; what a bridge passes on was not."""
    client = fam.local(2) if pod_client else fam.client
    if pod_client:
        world.backend(fam, client, 9090, TCP, local=True)
    one = scene(world, fam, TC_INGRESS, client=client)
    syn = one.caller.send("S")
    leaving = craft.tcp(fam, client, PORT, *one.pod.endpoint, "S")
    routed = craft.frame(leaving, src=LOCAL_MAC, dst=POD_MAC)
    assert expect.destination(syn) == one.pod.endpoint
    expect.untouched(world.run(TC_EGRESS, routed, world.net.pod0), routed)
    bridged = world.run(TC_EGRESS, craft.frame(leaving, src=NODE_MAC, dst=LOCAL_MAC), world.net.pod0)
    assert expect.source(bridged)[0] == fam.node


def test_the_client_is_a_backend_too(world: World, fam: Family, hook: str) -> None:
    """Its segments are looked at as replies first, and those to it are replies."""
    one = scene(world, fam, TC_INGRESS, client=fam.local(2))
    world.backend(fam, fam.local(2), PORT, TCP, local=True)
    one.caller.establish()
    one.direct.open()
    assert one.direct.has_snat_port
    one.both_are_right()


@pytest.mark.parametrize("plane", ["vip", "snat"])
def test_the_pods_place_in_the_filter_is_a_services_too(one: Scene, plane: str) -> None:
    """The filter is lossy: then flow and service are looked for first."""
    one.caller.world.filter(plane, one.pod.family.packed(one.pod.address))
    one.direct.open()
    assert one.direct.has_snat_port
    one.direct.send("S")
    one.both_are_right()


def is_forwarded(one: Scene, frame: bytes) -> None:
    """Send a segment of the direct connection: it goes by its flow, and counts once."""
    out = one.caller.world.run(one.caller.hook, frame)
    assert out.forwarded
    assert sum(out.counted.values()) == 1


def segment(one: Scene) -> Packet:
    return craft.tcp(one.pod.family, one.pod.family.client, PORT, *one.pod.endpoint, "PA")


@pytest.mark.parametrize("hook", [XDP], indirect=True)  # tc sees a tagged frame on its VLAN device
def test_segments_with_a_vlan_tag(one: Scene) -> None:
    one.direct.open()
    is_forwarded(one, craft.frame(segment(one), vlans=(5,)))


@pytest.mark.parametrize("fam", [4], indirect=True)
@pytest.mark.parametrize("field", [{"options": b"\x01\x01\x01\x00"}, {"flags": "MF"}], ids=["options", "fragment"])
def test_segments_that_are_not_plain(one: Scene, field: dict[str, Any]) -> None:
    """IPv4 options and fragments take the same way."""
    one.direct.open()
    packet = segment(one)
    for name, value in field.items():
        setattr(packet, name, value)
    is_forwarded(one, craft.frame(packet))


def test_icmp_errors(one: Scene) -> None:
    """About a segment to the pod they reach the client, about one of the pod they reach the pod: each reads what it sent."""
    fam, world, hook = one.pod.family, one.caller.world, one.caller.hook
    one.direct.open()
    out = one.direct.send("PA")
    error = craft.icmp_error(fam, one.pod.address, one.direct.source[0], fam.unreachable(), l3(out.packet))
    told = expect.at_pod(world, craft.frame(error, src=LOCAL_MAC, dst=POD_MAC))
    assert expect.parsed(told).icmp is not None
    quoted = with_hops_of(fam, l3(one.direct.sent), 63)
    check_error(told.packet, src=one.pod.address, dst=fam.client, kind=fam.unreachable(), quoted=quoted)
    heard = craft.frame(craft.tcp(fam, *one.pod.endpoint, fam.client, PORT, "A"))
    said = expect.local_reply(fam, TCP, one.pod, *one.direct.source, "A")
    error = craft.icmp_error(fam, fam.client2, one.pod.address, fam.too_big(1320), l3(heard))
    told = world.run(hook, craft.frame(error))
    check_error(told.packet, src=fam.client2, dst=one.pod.address, kind=fam.too_big(1320), quoted=l3(said), mtu=1320)


# --- the direct connection first: there is no flow of it ---


@pytest.mark.parametrize("said", ["A", "PA", "FA"])
def test_the_pod_first(world: World, fam: Family, hook: str, said: str) -> None:
    """The pod challenges the frontend's SYN, or sends on: that is the direct connection's. The next SYN comes from a SNAT port."""
    one = scene(world, fam, hook)
    one.direct.open()
    assert one.direct.source == one.caller.endpoint
    one.caller.send("S")
    assert one.caller.source == one.caller.endpoint
    assert one.direct.is_answered(said)
    assert one.caller.send("S").counted[Reason.FWD_RESELECTED] == 1
    assert one.caller.source[0] == fam.node
    one.caller.establish()
    one.both_are_right()
    assert one.direct.source == one.caller.endpoint


def test_refused_is_refused(world: World, fam: Family, hook: str) -> None:
    """A RST after the SYN is its answer."""
    one = scene(world, fam, hook)
    one.caller.send("S")
    assert one.caller.is_answered("RA")


def test_a_process_of_the_node_challenges(world: World, fam: Family, hook: str) -> None:
    """It has no other source address: the client receives the segment and resets the old connection."""
    one = scene(world, fam, hook, host=True)
    one.caller.send("S")
    out = world.run(TC_EGRESS, expect.local_reply(fam, TCP, one.pod, *one.caller.source, "A"), world.net.lb0)
    assert expect.source(out) == (fam.vip, 80)


def test_a_segment_of_no_connection_opens_none(one: Scene) -> None:
    """A port with the same mark has a direct connection; a segment of this one without a SYN passes untouched, as the pod may
    have a connection of it."""
    service = one.caller.service
    Caller(one.caller.world, service, service.family.client2, SAME_MARK, one.caller.hook).establish()
    Direct(one.caller.world, one.pod, service.family.client2, SAME_MARK, one.caller.hook).open()
    flows = len(table.flows(one.caller.world, service.family))
    assert one.direct.passes("PA", counted=1)
    assert len(table.flows(one.caller.world, service.family)) == flows


def test_a_connection_that_was_opened_anew(one: Scene) -> None:
    """The pod may not have closed the connection before: its client gets the answer from the frontend."""
    one.caller.send("FA")
    one.caller.answer("FA")
    one.caller.send("S")
    assert one.caller.is_answered("A")
    assert one.caller.is_answered("SA")
    assert one.caller.stays()


def test_a_handshake_whose_answer_other_programs_saw(world: World, fam: Family, hook: str) -> None:
    """The client acknowledges something, so the backend has accepted: its segments belong to this connection."""
    one = scene(world, fam, hook)
    one.caller.send("S")
    one.caller.send("A")
    assert one.caller.is_answered("A")
    assert one.caller.is_answered("PA")
    assert one.caller.stays()
