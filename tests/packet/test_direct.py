"""One client port sends to a frontend and at the same time directly to its pod: each answer has the right source. UDP only."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.layout import DeviceFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld, ticks_of
from tests.packet.craft import LOCAL_MAC, NODE_MAC, POD_MAC, Family
from tests.packet.world import TC_EGRESS, TC_INGRESS, TCP, UDP, XDP, BackendRow, Outcome, World

PORT = 40000


@dataclass
class Scene:
    """A client port that talks to a frontend (`caller`), and to the pod that is its only backend."""

    world: World
    fam: Family
    caller: Caller
    pod: BackendRow

    def asks_pod(self, *, dport: int = 0, client: str = "", port: int = PORT, proto: int = UDP) -> Outcome:
        """Send a datagram to the pod itself; it must pass untouched."""
        source = client or self.caller.client
        packet = craft.segment(self.fam, proto, source, port, self.pod.address, dport or self.pod.port, "A")
        frame = craft.frame(packet)
        out = self.world.run(self.caller.hook, frame)
        expect.untouched(out, frame)
        return out

    def pod_answers(self, *, proto: int = UDP) -> bool:
        """Let the pod answer the client directly; return whether the client receives it from the pod."""
        frame = expect.local_reply(self.fam, proto, self.pod, *self.caller.endpoint, "A")
        out = expect.at_pod(self.world, frame)
        return out.passed and out.packet == frame

    @property
    def keeps_client(self) -> bool:
        """Whether the pod sees the client's own address behind the frontend."""
        return self.caller.source == self.caller.endpoint


def scene(world: World, fam: Family, hook: str, *, client: str = "", host: bool = False) -> Scene:
    """Enter a service of UDP with one backend on this node."""
    pod = world.backend(fam, fam.node if host else fam.local(1), 8053, UDP, local=True, host=host)
    service = world.service(fam, fam.vip, 53, UDP, [pod])
    return Scene(world, fam, Caller(world, service, client or fam.client, PORT, hook), pod)


def both_are_right(one: Scene, rounds: int = 3) -> None:
    """Send to both in turn; all answers must come from the address that was used."""
    for _ in range(rounds):
        one.caller.send()
        assert one.caller.is_answered()
        assert one.asks_pod().counted == {Reason.PASS_NOT_SERVICE: 1}
        assert one.pod_answers()
        assert one.caller.is_answered(), "the frontend's answer comes after the pod's"
        assert one.caller.stays()


def test_the_frontend_first(world: World, fam: Family, hook: str) -> None:
    """The flow keeps its client's address until the first direct datagram; from then on it has a SNAT port."""
    one = scene(world, fam, hook)
    for _ in range(2):
        one.caller.send()
        assert one.caller.is_answered()
        assert one.keeps_client
    one.asks_pod()
    assert one.pod_answers()
    assert one.caller.send().counted[Reason.FWD_RESELECTED] == 1
    assert one.caller.source[0] == fam.node
    both_are_right(one)


def test_the_pod_first(world: World, fam: Family, hook: str) -> None:
    """A datagram to the pod leaves nothing behind, so the flow that comes after it is seen with the next one."""
    one = scene(world, fam, hook)
    one.asks_pod()
    assert one.pod_answers()
    assert table.flows(world, fam) == []
    one.caller.send()
    assert one.caller.is_answered()
    assert one.keeps_client
    one.asks_pod()
    assert one.pod_answers()
    both_are_right(one)


def test_established_or_not(world: World, fam: Family, hook: str) -> None:
    """The flow makes way also when nothing has been answered yet."""
    one = scene(world, fam, hook)
    one.caller.send()
    one.asks_pod()
    assert one.pod_answers()
    both_are_right(one)


def test_the_flow_stays_with_its_backend(world: World, fam: Family, hook: str) -> None:
    """With several backends: the conversation of the client with this one continues."""
    pods = [world.backend(fam, fam.local(n), 8053, UDP, local=True) for n in range(1, 9)]
    service = world.service(fam, fam.vip, 53, UDP, pods)
    for port in range(PORT, PORT + 8):
        caller = Caller(world, service, fam.client, port, hook)
        caller.send()
        pod = caller.backend
        assert pod
        one = Scene(world, fam, caller, pod)
        one.asks_pod(port=port)
        caller.send()
        assert caller.backend == pod
        assert caller.source[0] == fam.node
        assert caller.is_answered()


def test_what_is_no_direct_conversation_of_this_flow(world: World, fam: Family, hook: str) -> None:
    """Another client, another port on either side, TCP: the flow keeps its client's address."""
    one = scene(world, fam, hook)
    one.caller.send()
    one.asks_pod(client=fam.client2)
    one.asks_pod(port=PORT + 1)
    one.asks_pod(dport=8054)
    assert one.asks_pod(proto=TCP).counted == {}
    assert one.caller.stays()
    assert one.keeps_client
    assert one.caller.is_answered()


def test_the_other_protocol_of_a_pod(world: World, fam: Family, hook: str) -> None:
    """Segments except a SYN pass at the entry, and so do datagrams to a pod with TCP alone; those from a pod are still found to be replies."""
    one = scene(world, fam, hook)
    backend = world.backend(fam, one.pod.address, 8053, TCP, local=True)
    talk = Caller(world, world.service(fam, fam.vip, 53, TCP, [backend]), fam.local(2), PORT, hook)
    world.backend(fam, fam.local(2), 8053, UDP, local=True)
    for flags in "SAFR":
        packet = craft.tcp(fam, fam.client, PORT, one.pod.address, 8053, flags)
        out = world.run(hook, craft.frame(packet))
        expect.untouched(out, craft.frame(packet))
        assert out.counted == ({Reason.PASS_NOT_SERVICE: 1} if flags == "S" else {})
    web = world.backend(fam, fam.local(3), 8080, TCP, local=True)
    datagram = craft.frame(craft.udp(fam, fam.client, PORT, web.address, 8080))
    out = world.run(hook, datagram)
    expect.untouched(out, datagram)
    assert out.counted == {}
    talk.send("S")
    assert talk.is_answered("SA"), "between two pods that both have UDP"


def test_pods_ask_each_other(world: World, fam: Family) -> None:
    """The client is a pod with a UDP port of its own: its answers are replies, and its datagrams to the pod are direct."""
    one = scene(world, fam, TC_INGRESS, client=fam.local(2))
    world.backend(fam, fam.local(2), PORT, UDP, local=True)
    one.caller.send()
    assert one.caller.is_answered()
    packet = craft.udp(fam, fam.local(2), PORT, one.pod.address, 8053)
    frame = craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC)
    expect.untouched(expect.at_pod(world, frame), frame)
    assert one.pod_answers()
    one.caller.send()
    assert one.caller.source[0] == fam.node
    assert one.caller.is_answered()


def test_a_frontends_datagram_on_its_way_out(world: World, fam: Family) -> None:
    """A pod sends to the frontend: translated at its own device, the packet leaves by the other pod's device."""
    one = scene(world, fam, TC_INGRESS, client=fam.local(2))
    world.backend(fam, fam.local(2), PORT, UDP, local=True)
    one.caller.send()
    leaving = craft.frame(craft.udp(fam, fam.local(2), PORT, *one.pod.endpoint), src=LOCAL_MAC, dst=POD_MAC)
    expect.untouched(world.run(TC_EGRESS, leaving, world.net.pod0), leaving)
    assert one.caller.stays()
    assert one.keeps_client


def test_on_its_way_out_it_is_asked_once(world: World, fam: Family) -> None:
    """What leaves by the pod's device was seen when it came in, translated or not; only what a bridge passes on was not."""
    one = scene(world, fam, TC_INGRESS)
    sent = craft.udp(fam, fam.client, PORT, one.pod.address, 8053)
    routed = craft.frame(
        sent, src=LOCAL_MAC, dst=POD_MAC
    )  # in a test run, for the device's own MAC address: PACKET_HOST
    bridged = craft.frame(sent, src=NODE_MAC, dst=LOCAL_MAC)
    one.caller.send()
    out = world.run(TC_EGRESS, routed, world.net.pod0)
    expect.untouched(out, routed)
    assert out.counted == {}
    assert one.caller.stays()
    assert one.keeps_client
    expect.untouched(world.run(TC_EGRESS, bridged, world.net.pod0), bridged)
    assert one.pod_answers()
    both_are_right(one)


def test_a_device_over_another_one_is_not_asked(world: World, fam: Family, hook: str) -> None:
    """A datagram that comes in by a VLAN may be the frontend's, translated on the device under it."""
    one = scene(world, fam, hook)
    world.device(world.net.lb0, DeviceFlag.XDP_SEND | DeviceFlag.STACKED, NODE_MAC)
    one.caller.send()
    assert one.asks_pod().counted == {}
    assert one.caller.stays()
    assert one.keeps_client


def test_a_process_of_the_node_keeps_its_flow(world: World, fam: Family, hook: str) -> None:
    """It accepts only the client's own address: the frontend's answers stay right."""
    one = scene(world, fam, hook, host=True)
    one.caller.send()
    one.asks_pod()
    assert one.caller.stays()
    assert one.keeps_client


@pytest.mark.parametrize("plane", ["vip", "snat"])
def test_the_pod_s_place_in_the_filter_is_a_service_s_too(world: World, fam: Family, hook: str, plane: str) -> None:
    """The filter is lossy: then the service is looked for first."""
    one = scene(world, fam, hook)
    world.filter(plane, fam.packed(one.pod.address))
    one.caller.send()
    one.asks_pod()
    assert one.pod_answers()
    both_are_right(one)


@pytest.mark.parametrize("vlans", [(5,), (5, 6)], ids=["tagged", "double"])
def test_with_tags(world: World, fam: Family, vlans: tuple[int, ...]) -> None:
    """XDP sees a VLAN's frames on the device under it."""
    one = scene(world, fam, XDP)
    one.caller.send()
    for proto, counted in ((TCP, {}), (UDP, {Reason.PASS_NOT_SERVICE: 1})):
        packet = craft.segment(fam, proto, fam.client, PORT, one.pod.address, 8053, "A")
        frame = craft.frame(packet, vlans=vlans)
        out = world.run(XDP, frame)
        expect.untouched(out, frame)
        assert out.counted == counted
        assert one.pod_answers() == (proto == UDP)


def test_the_backend_goes_before_the_flow_has_its_port(world: World, fam: Family, hook: str) -> None:
    """The flow goes to another backend, as it would have without a direct conversation."""
    one = scene(world, fam, hook)
    one.caller.send()
    one.asks_pod()
    world.remove_backend(one.pod)
    other = world.backend(fam, fam.local(2), 8053, UDP, local=True)
    service = world.service(fam, fam.vip, 53, UDP, [other], ident=one.caller.service.id)
    assert one.pod_answers()
    caller = Caller(world, service, fam.client, PORT, hook)
    caller.send()
    assert caller.backend == other
    assert caller.source == caller.endpoint
    assert caller.is_answered()


def test_the_service_goes_before_the_flow_has_its_port(world: World, fam: Family, hook: str) -> None:
    """The frontend's client gets the error; the pod is not affected."""
    one = scene(world, fam, hook)
    one.caller.send()
    one.asks_pod()
    world.remove_service(one.caller.service)
    assert one.caller.send().counted == {Reason.REJECT_SERVICE_GONE: 1}
    one.asks_pod()
    assert one.pod_answers()


def test_nothing_is_left_when_both_are_silent(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The flow expires as any other of UDP, with its port; then the client's own address is seen again."""
    world = still_world.reset()
    one = scene(world, fam, hook)
    one.caller.send()
    one.asks_pod()
    both_are_right(one)
    assert (len(table.flows(world, fam)), table.held_slots(world, fam)) == (1, 1)
    still_world.clock.pass_ticks(ticks_of(ProgramSettings().timeout_udp_s) + 2)
    still_world.sweep(fam)
    assert (table.flows(world, fam), table.held_slots(world, fam)) == ([], 0)
    assert one.pod_answers()
    one.caller.send()
    assert one.keeps_client


def test_a_flow_that_waits_for_its_port_expires(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """It made way and never sent again."""
    world = still_world.reset()
    one = scene(world, fam, hook)
    one.caller.send()
    assert one.caller.is_answered()
    one.asks_pod()
    still_world.clock.pass_ticks(ticks_of(ProgramSettings().timeout_udp_s) + 2)
    still_world.sweep(fam)
    assert table.flows(world, fam) == []
    one.asks_pod()
    assert one.pod_answers()


def test_flows_in_the_spill_map_make_way(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The bucket is full of flows that live: this one lies in the spill map, and so does the row of its replies."""
    world = still_world.reset()
    one = scene(world, fam, hook)
    others = [Caller(world, one.caller.service, fam.client, PORT + n, hook) for n in range(1, 5)]
    for other in others:
        other.establish()
    assert one.caller.send().counted[Reason.FWD_SPILL] == 1
    assert one.caller.is_answered()
    assert one.keeps_client
    one.asks_pod()
    assert one.pod_answers()
    both_are_right(one)
    assert all(other.stays() and other.is_answered() for other in others)
