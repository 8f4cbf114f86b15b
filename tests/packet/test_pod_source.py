"""A pod of this node keeps its address towards backends on other nodes. Their replies pass as they are to where they leave to the pod."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.layout import PathFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, wire
from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, NODE_MAC, POD_MAC, ROUTER_MAC, Family
from tests.packet.harness import DEFAULTS, open_world
from tests.packet.world import TC_EGRESS, TCP, UDP, BackendRow, Outcome, ServiceRow, World

PROTOCOLS = pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
PORT = 40000


@dataclass
class Scene:
    """A pod of this node, and a frontend whose backend is on another one, behind lb1."""

    world: World
    fam: Family
    proto: int
    backend: BackendRow
    service: ServiceRow

    @property
    def pod(self) -> str:
        """The pod's address."""
        return self.fam.local(9)

    def asks(self, flags: str = "S", *, to: str = "", dport: int = 80, sport: int = PORT, **kw: object) -> Outcome:
        """Let the pod send a packet to the frontend, or `to` another address."""
        packet = craft.segment(self.fam, self.proto, self.pod, sport, to or self.service.address, dport, flags, **kw)
        self.sent = craft.frame(packet, src=LOCAL_MAC, dst=POD_MAC)
        return expect.at_pod(self.world, self.sent)

    def keeps(self, out: Outcome) -> bool:
        """Whether the packet just sent went up to the stack for the backend, from the pod's own address."""
        return out.passed and out.packet == expect.translated(self.sent, dst=self.backend.address, dport=8080)

    def reply(self, flags: str = "SA", *, sport: int = PORT) -> craft.Packet:
        """Return the backend's packet to the pod."""
        return craft.segment(self.fam, self.proto, self.backend.address, 8080, self.pod, sport, flags)

    def comes_in(self, hook: str, packet: craft.Packet) -> Outcome:
        """Let a packet from elsewhere come in by lb1: it must pass as it is."""
        frame = craft.frame(packet, src=BACKEND_MAC, dst=NODE2_MAC)
        out = self.world.run(hook, frame, self.world.net.lb1)
        expect.untouched(out, frame)
        return out

    def leaves(self, packet: craft.Packet, came_by: int = 0) -> Outcome:
        """Let a packet that came in by a device (lb1) leave to the pod."""
        frame = craft.frame(packet, src=POD_MAC, dst=LOCAL_MAC)
        net = self.world.net
        return self.world.run(TC_EGRESS, frame, net.pod0, came_by=came_by or net.lb1)

    def is_answered(self, hook: str, flags: str = "SA", *, sport: int = PORT) -> bool:
        """Let the backend answer; return whether the pod receives it from the frontend."""
        packet = self.reply(flags, sport=sport)
        assert self.comes_in(hook, packet).counted == {}, "counted where it leaves"
        out = self.leaves(packet)
        return expect.source(out) == (self.service.address, 80) and out.counted == {Reason.FWD_REPLY: 1}


def scene(world: World, fam: Family, proto: int = TCP) -> Scene:
    """Enter the service."""
    backend = world.backend(fam, fam.remote(1), 8080, proto, keeps_pod=True)
    return Scene(world, fam, proto, backend, world.service(fam, fam.vip, 80, proto, [backend]))


@PROTOCOLS
def test_round_trip(world: World, fam: Family, hook: str, proto: int) -> None:
    """The destination alone is translated, and the stack routes; to it the conversation is one of pod and backend, both ways."""
    one = scene(world, fam, proto)
    for client_flags, backend_flags in (("S", "SA"), ("A", "A"), ("PA", "PA")):
        out = one.asks(client_flags)
        assert one.keeps(out)
        assert out.counted == {Reason.FWD_LOCAL: 1}
        packet = one.reply(backend_flags)
        assert one.comes_in(hook, packet).counted == {}
        back = one.leaves(packet)
        expect.replied_in_place(back, craft.frame(packet, src=POD_MAC, dst=LOCAL_MAC), one.service)
        assert back.counted == {Reason.FWD_REPLY: 1}


@PROTOCOLS
@pytest.mark.parametrize("sport", [PORT, DEFAULTS.snat_port_min, DEFAULTS.snat_port_max])
def test_the_pod_is_a_backend_itself(world: World, fam: Family, hook: str, proto: int, sport: int) -> None:
    """From any port, also one that is a SNAT port of the node."""
    one = scene(world, fam, proto)
    world.backend(fam, one.pod, 9090, proto, local=True)
    for client_flags, backend_flags in (("S", "SA"), ("A", "A"), ("PA", "PA")):
        assert one.keeps(one.asks(client_flags, sport=sport))
        assert one.is_answered(hook, backend_flags, sport=sport)


@PROTOCOLS
def test_other_clients_are_translated(world: World, fam: Family, hook: str, proto: int) -> None:
    """One from outside, whose replies would not come back, and the node itself, whose address is translated in any case."""
    one = scene(world, fam, proto)
    frame = craft.frame(craft.segment(fam, proto, fam.client, PORT, fam.vip, 80))
    port = expect.forwarded_to(world.run(hook, frame), frame, one.backend)
    answer = expect.remote_reply(fam, proto, one.backend, port)
    expect.replied(world.run(hook, answer, world.net.lb1), answer, one.service, fam.client, PORT)
    own = craft.frame(craft.segment(fam, proto, fam.node, PORT, fam.vip, 80), src=NODE_MAC, dst=ROUTER_MAC)
    out = world.run(TC_EGRESS, own, world.net.lb0)
    assert out.forwarded
    assert expect.source(out)[0] == fam.node2


@PROTOCOLS
def test_one_port_to_two_frontends_of_one_backend(world: World, fam: Family, hook: str, proto: int) -> None:
    """The second flow gets a SNAT port: each reply goes to its own frontend."""
    one = scene(world, fam, proto)
    second = world.service(fam, fam.vip2, 80, proto, [one.backend])
    assert one.keeps(one.asks())
    out = one.asks(to=fam.vip2)
    assert out.forwarded
    address, port = expect.source(out)
    assert address == fam.node2
    assert one.is_answered(hook)
    world.net.run(f"neigh replace {one.pod} lladdr {LOCAL_MAC} dev pod0 nud permanent")
    back = expect.remote_reply(fam, proto, one.backend, port)
    out = world.run(hook, back, world.net.lb1)
    if not out.forwarded:  # XDP leaves it to tc: a pod's device takes no frames of XDP
        out = expect.handed_over(world, back, world.net.lb1)
    assert (expect.source(out), expect.destination(out)) == ((second.address, 80), (one.pod, PORT))


def test_the_backend_itself_is_asked_too(world: World, fam: Family, hook: str) -> None:
    """UDP: the frontend's flow makes way, as that of a local backend does."""
    one = scene(world, fam, UDP)
    assert one.keeps(one.asks())
    assert one.is_answered(hook)
    expect.untouched(one.asks(to=one.backend.address, dport=8080), one.sent)
    packet = one.reply()
    one.comes_in(hook, packet)
    expect.untouched(one.leaves(packet), craft.frame(packet, src=POD_MAC, dst=LOCAL_MAC))
    out = one.asks()
    assert out.forwarded
    assert expect.source(out)[0] == fam.node2


def test_its_own_request_on_the_way_out_changes_nothing(world: World, fam: Family, hook: str) -> None:
    """The pod is a backend of UDP itself, so what leaves by lb1, translated, may be a reply: it is none, and no direct conversation."""
    one = scene(world, fam, UDP)
    world.backend(fam, one.pod, PORT, UDP, local=True)
    for _ in range(3):
        out = one.asks()
        assert one.keeps(out)
        frame = bytes.fromhex((NODE2_MAC + NODE2_MAC).replace(":", "")) + out.packet[12:]  # PACKET_HOST, as it came in
        expect.untouched(world.run(TC_EGRESS, frame, world.net.lb1, came_by=world.net.pod0), frame)
        assert one.is_answered(hook)


@PROTOCOLS
def test_a_flow_keeps_the_mode_it_was_made_with(world: World, fam: Family, hook: str, proto: int) -> None:
    """From SNAT to the pod's own address and back: existing flows continue unchanged."""
    one = scene(world, fam, proto)
    world.path_flags(one.backend, clear=PathFlag.KEEPS_POD)
    first = one.asks()
    assert first.forwarded
    world.path_flags(one.backend, set_=PathFlag.KEEPS_POD)
    again = one.asks("A")
    assert again.forwarded
    assert expect.source(again) == expect.source(first)
    assert one.keeps(one.asks(sport=PORT + 1))
    world.path_flags(one.backend, set_=PathFlag.WAS_LOCAL, clear=PathFlag.KEEPS_POD)
    assert one.keeps(one.asks("A", sport=PORT + 1))
    world.net.run(f"neigh replace {one.pod} lladdr {LOCAL_MAC} dev pod0 nud permanent")
    back = craft.frame(one.reply(sport=PORT + 1), src=BACKEND_MAC, dst=NODE2_MAC)
    out = world.run(hook, back, world.net.lb1)
    if not out.forwarded:
        out = expect.handed_over(world, back, world.net.lb1)
    assert (expect.source(out), expect.destination(out)) == ((one.service.address, 80), (one.pod, PORT + 1))


@PROTOCOLS
@pytest.mark.parametrize("sender", ["backend", "router"])
def test_an_icmp_error_about_a_request(world: World, fam: Family, hook: str, proto: int, sender: str) -> None:
    """It is translated where it leaves to the pod, as replies are."""
    one = scene(world, fam, proto)
    sent = one.asks(load=bytes(40))
    source = one.backend.address if sender == "backend" else fam.router2
    error = craft.icmp_error(fam, source, one.pod, fam.unreachable(), sent.packet[14:])
    assert one.comes_in(hook, error).counted == {}
    out = one.leaves(error)
    assert out.counted == {Reason.FWD_ICMP: 1}
    seen = wire.parse(out.packet)
    assert seen is not None
    assert not seen.bad
    assert fam.text(seen.src) == (one.service.address if sender == "backend" else source)
    assert out.packet.endswith(one.sent[14:]), "what the pod sent"


def test_a_backend_that_is_gone(world: World, fam: Family) -> None:
    """TCP: the pod's next segment is answered with a RST of the frontend."""
    one = scene(world, fam)
    one.asks()
    world.remove_backend(one.backend)
    out = one.asks("A")
    assert out.counted == {Reason.REJECT_BACKEND_GONE: 1}
    assert expect.source(out) == (one.service.address, 80)


# --- --strict-source ---


@pytest.fixture(scope="module")
def strict() -> Iterator[World]:
    """Load programs with `--strict-source`."""
    with open_world(ProgramSettings(strict_source=True)) as world:
        yield world


def by_another_way(one: Scene) -> Outcome:
    """Send the pod's request, and the backend's answer to it, which came in by lb0, not the device of its route."""
    assert one.keeps(one.asks())
    return one.leaves(one.reply(), one.world.net.lb0)


def test_ways_back_may_differ(world: World, fam: Family) -> None:
    """A reply is accepted on any device, like one to a SNAT port."""
    one = scene(world, fam)
    assert expect.source(by_another_way(one)) == (one.service.address, 80)


def test_strict_source(strict: World, fam: Family, hook: str) -> None:
    """It must have come in by the device of the backend's route; else the pod gets it as it is."""
    strict.reset()
    one = scene(strict, fam)
    assert by_another_way(one).counted == {Reason.PASS_FOREIGN_SOURCE: 1}
    assert one.is_answered(hook)
