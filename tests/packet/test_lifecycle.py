"""Backends come, rest and leave under existing flows: which flows stay, which move, which are reset."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP as TcpLayer

from lbagent.maps.layout import PathFlag
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.test_state import sweep
from tests.packet.world import TCP, UDP, BackendRow, Outcome, ServiceRow, World


class Scene:
    """A service with two backends and one flow to the first of them it happened to take."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int, *, local: bool = False) -> None:
        """Open the flow and establish it by a reply."""
        self.world, self.fam, self.hook, self.proto = world, fam, hook, proto
        self.backends = [
            world.backend(fam, fam.local(n) if local else fam.remote(n), 8080, proto, local=local) for n in (1, 2)
        ]
        self.service: ServiceRow = world.service(fam, fam.vip, 80, proto, self.backends)
        out = self.send("S")
        self.held: BackendRow = next(b for b in self.backends if b.endpoint == expect.destination(out))
        self.other: BackendRow = next(b for b in self.backends if b is not self.held)
        self.place = expect.destination(out), expect.source(out)

    def send(self, flags: str = "A", sport: int = 40000) -> Outcome:
        """Send a packet of the client."""
        frame = craft.frame(craft.segment(self.fam, self.proto, self.fam.client, sport, self.fam.vip, 80, flags))
        return self.world.run(self.hook, frame)

    def reply(self) -> Outcome:
        """Send the held backend's answer."""
        answer = expect.remote_reply(self.fam, self.proto, self.held, self.place[1][1])
        return self.world.run(self.hook, answer, self.world.net.lb1)

    def only_other(self) -> None:
        """Make the other backend the only selectable one, as a plan does for maintenance or removal."""
        self.world.slot(self.service, 1, target=self.other.id)
        self.world.slot(self.service, 0, target=self.service.target, count=1)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_maintenance_keeps_connections_and_moves_new_ones(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Packets of an established connection stay; a SYN on the same tuple selects again."""
    scene = Scene(world, fam, hook, TCP, local=local)
    world.path_flags(scene.held, clear=PathFlag.SELECTABLE)
    scene.only_other()
    for flags in ("A", "PA", "A"):
        out = scene.send(flags)
        assert (expect.destination(out), expect.source(out)) == scene.place
    again = scene.send("S")
    assert expect.destination(again) == scene.other.endpoint
    assert again.counted[Reason.FWD_RESELECTED] == 1
    assert expect.destination(scene.send("A")) == scene.other.endpoint


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_a_connection_that_moves_begins_its_handshake_anew(
    world: World, fam: Family, hook: str, *, local: bool
) -> None:
    """The first backend's answer does not count for the second one."""
    scene = Scene(world, fam, hook, TCP, local=local)
    if local:
        expect.at_pod(world, expect.local_reply(fam, TCP, scene.held, fam.client, 40000, "SA"))
    else:
        scene.reply()
    world.path_flags(scene.held, clear=PathFlag.SELECTABLE)
    scene.only_other()
    assert expect.destination(scene.send("S")) == scene.other.endpoint
    scene.send("A")
    assert table.only(world, fam).state == table.NEW


def test_a_resent_syn_stays(world: World, fam: Family, hook: str) -> None:
    """While the backend takes new flows, a SYN sent twice goes to the same place."""
    scene = Scene(world, fam, hook, TCP)
    for _ in range(3):
        out = scene.send("S")
        assert (expect.destination(out), expect.source(out)) == scene.place


def test_udp_stays_with_a_resting_backend(world: World, fam: Family, hook: str) -> None:
    """Datagrams have no SYN: a flow stays with a backend that lives, even in maintenance."""
    scene = Scene(world, fam, hook, UDP)
    world.path_flags(scene.held, clear=PathFlag.SELECTABLE)
    scene.only_other()
    out = scene.send()
    assert (expect.destination(out), expect.source(out)) == scene.place


def test_a_refused_flow_is_made_anew(world: World, fam: Family, hook: str) -> None:
    """Its port is free: the client's next SYN gets one, however often the backend's path record was used before."""
    for gen in (1, 127, 128, 255):
        world.reset()
        backend = world.backend(fam, fam.remote(1), 8080, gen=gen)
        talk = Caller(world, world.service(fam, fam.vip, 80, backends=[backend]), hook=hook)
        talk.send("S")
        assert talk.is_answered("RA")
        assert table.held_slots(world, fam) == 0
        talk.establish()
        assert talk.source[0] == fam.node2
        assert table.held_slots(world, fam) == 1


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_backend_gone_resets_tcp(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """A connection to a removed backend gets a RST at once, with numbers its client accepts."""
    scene = Scene(world, fam, hook, TCP, local=local)
    scene.only_other()
    world.remove_backend(scene.held)
    frame = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, "PA", seq=100, ack=555, load=b"more"))
    out = world.run(hook, frame)
    assert out.forwarded
    assert out.counted == {Reason.REJECT_BACKEND_GONE: 1}
    assert (expect.source(out), expect.destination(out)) == ((fam.vip, 80), (fam.client, 40000))
    segment = craft.decode(out.packet)[TcpLayer]
    assert (segment.seq, str(segment.flags)) == (555, "R")
    fresh = scene.send("S")
    assert expect.destination(fresh) == scene.other.endpoint


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_a_flow_whose_backend_is_gone_ends(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """It closes with the first RST, stays as long as its client sends, and each packet gets the same answer."""
    scene = Scene(world, fam, hook, TCP, local=local)
    world.remove_backend(scene.held)
    for _ in range(3):
        table.age(world, fam, 10)  # three times that is more than the time-out of a closing flow
        assert scene.send("A").counted == {Reason.REJECT_BACKEND_GONE: 1}
        assert table.only(world, fam).state == table.CLOSING
        assert sweep(world, fam) == 1


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_backend_gone_moves_udp(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Datagrams go to another backend without an error, and stay there."""
    scene = Scene(world, fam, hook, UDP, local=local)
    scene.only_other()
    world.remove_backend(scene.held)
    out = scene.send()
    assert expect.destination(out) == scene.other.endpoint
    assert out.counted[Reason.FWD_RESELECTED] == 1
    again = scene.send()
    assert (expect.destination(again), expect.source(again)) == (expect.destination(out), expect.source(out))
    assert again.counted[Reason.FWD_RESELECTED] == 0


def test_address_reused_by_another_backend(world: World, fam: Family, hook: str) -> None:
    """The same record with a new generation is another backend: the old flow does not follow it."""
    scene = Scene(world, fam, hook, TCP)
    world.path_flags(scene.held, bump=True)
    out = scene.send("A")
    assert out.counted == {Reason.REJECT_BACKEND_GONE: 1}


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_a_backend_of_this_node_that_comes_back_sees_its_clients(
    world: World, fam: Family, hook: str, proto: int
) -> None:
    """A flow that its client opens again is the same one: it takes no SNAT port, unlike one of another frontend."""
    backend = world.backend(fam, fam.local(1), 8080, proto, local=True)
    world.service(fam, fam.vip, 80, proto, [backend])
    frame = craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80, "S"))
    assert expect.source(world.run(hook, frame)) == (fam.client, 40000)
    world.path_flags(backend, bump=True)
    again = world.run(hook, frame)
    assert again.counted[Reason.FWD_RESELECTED] == 1
    assert (expect.destination(again), expect.source(again)) == (backend.endpoint, (fam.client, 40000))
    assert table.held_slots(world, fam) == 0


def test_late_reply_of_a_removed_backend(world: World, fam: Family, hook: str) -> None:
    """What a removed backend still sends is translated as before or not forwarded; it never goes to another client."""
    scene = Scene(world, fam, hook, TCP)
    world.remove_backend(scene.held)
    out = scene.reply()
    assert not out.forwarded or expect.destination(out) == (fam.client, 40000)


def test_last_backend_gone(world: World, fam: Family, hook: str) -> None:
    """No backend left: established TCP is reset, new TCP refused, UDP unreachable."""
    for proto, vip in ((TCP, fam.vip), (UDP, fam.vip2)):
        backend = world.backend(fam, fam.remote(proto), 8080, proto)
        service = world.service(fam, vip, 80, proto, [backend])
        frames = [craft.frame(craft.segment(fam, proto, fam.client, 40000, vip, 80, flags)) for flags in ("S", "A")]
        assert all(world.run(hook, frame).forwarded for frame in frames)
        world.slot(service, 0, target=service.target, count=0)
        world.remove_backend(backend)
        for frame in frames:
            out = world.run(hook, frame)
            assert out.forwarded
            assert fam.text(expect.parsed(out).src) == vip


def test_service_gone_keeps_its_flows(world: World, fam: Family, hook: str) -> None:
    """A removed frontend gets no new flow; flows to a live backend continue."""
    from lbagent.maps import layout

    scene = Scene(world, fam, hook, TCP)
    codec = layout.LB4_KEY if fam.version == 4 else layout.LB6_KEY
    master = codec.pack(fam.packed(fam.vip), (80).to_bytes(2, "big"), 0, TCP, 0, b"\0\0")
    world.maps.delete_many(f"lb{fam.version}_service", [master])
    out = scene.send("A")
    assert (expect.destination(out), expect.source(out)) == scene.place
    fresh = craft.frame(craft.tcp(fam, fam.client, 40001, fam.vip, 80))
    expect.untouched(world.run(hook, fresh), fresh)


def test_slot_that_points_at_nothing(world: World, fam: Family, hook: str) -> None:
    """A slot whose backend has no record is the agent's error: counted, and never a packet to nowhere."""
    backend = world.backend(fam, fam.remote(1), 8080)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    world.slot(service, 1, target=900)
    out = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80)))
    assert not out.forwarded
    assert out.counted == {Reason.DROP_MISSING_BACKEND: 1}


def test_other_flows_do_not_notice(world: World, fam: Family, hook: str) -> None:
    """While one backend goes, 60 flows to the others keep backend and port."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 4)]
    service = world.service(fam, fam.vip, 80, TCP, backends)

    def send(sport: int, flags: str) -> Outcome:
        return world.run(hook, craft.frame(craft.tcp(fam, fam.client, sport, fam.vip, 80, flags)))

    places = {}
    for sport in range(41000, 41060):
        out = send(sport, "S")
        places[sport] = (expect.destination(out), expect.source(out))
    world.slot(service, 1, target=backends[2].id)
    world.slot(service, 0, target=service.target, count=2)
    world.remove_backend(backends[0])
    for sport, place in places.items():
        if place[0] != backends[0].endpoint:
            out = send(sport, "A")
            assert (expect.destination(out), expect.source(out)) == place


def test_connection_without_its_syn(world: World, fam: Family, hook: str) -> None:
    """A flow first seen in the middle (the agent came late) gets a backend and keeps it."""
    backends = [world.backend(fam, fam.remote(n), 8080) for n in range(1, 5)]
    world.service(fam, fam.vip, 80, TCP, backends)
    outs = [
        world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, flags)))
        for flags in ("A", "PA", "A")
    ]
    assert len({(expect.destination(out), expect.source(out)) for out in outs}) == 1


def test_port_used_again_after_the_connection_closed(world: World, fam: Family, hook: str) -> None:
    """FIN both ways, then a SYN from the same port: served as a new connection."""
    scene = Scene(world, fam, hook, TCP)
    scene.reply()
    scene.send("A")
    scene.send("FA")
    answer = expect.remote_reply(fam, TCP, scene.held, scene.place[1][1], "FA")
    assert world.run(hook, answer, world.net.lb1).forwarded
    assert scene.send("A").forwarded
    out = scene.send("S")
    assert out.forwarded
    assert expect.destination(out) in {b.endpoint for b in scene.backends}
    port = expect.source(out)[1]
    holder = next(b for b in scene.backends if b.endpoint == expect.destination(out))
    back = world.run(hook, expect.remote_reply(fam, TCP, holder, port), world.net.lb1)
    assert expect.destination(back) == (fam.client, 40000)


@pytest.mark.parametrize("proto", [TCP, UDP], ids=["tcp", "udp"])
def test_a_flow_keeps_the_mode_it_was_made_with(world: World, fam: Family, hook: str, proto: int) -> None:
    """A backend moves to another node, or to this one: existing flows continue unchanged, new ones follow the path record.

    The planner leaves the filter bit of a backend that was local as it is (tests/targets/bpf/test_locality.py).
    """
    here = Scene(world, fam, hook, proto, local=True)
    world.path_flags(here.held, set_=PathFlag.WAS_LOCAL, clear=PathFlag.LOCAL)
    world.path_flags(here.other, set_=PathFlag.WAS_LOCAL, clear=PathFlag.LOCAL)
    for flags in ("A", "PA", "A"):
        out = here.send(flags)
        assert not out.forwarded
        assert (expect.destination(out), expect.source(out)) == (here.held.endpoint, (fam.client, 40000))
        assert out.counted == {Reason.FWD_LOCAL: 1}
    back = expect.at_pod(world, expect.local_reply(fam, proto, here.held, fam.client, 40000))
    assert (expect.source(back), expect.destination(back)) == ((fam.vip, 80), (fam.client, 40000))
    fresh = here.send("S", sport=40001)
    assert fresh.forwarded
    assert expect.source(fresh)[0] != fam.client
