"""A Service, or one of its frontends, is removed while its connections live: each end gets an error at its next packet, none hangs."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP as TcpLayer

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import Family
from tests.packet.test_state import sweep
from tests.packet.world import TCP, UDP, BackendRow, Outcome, ServiceRow, World

BOTH_WAYS = pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
GOES_TOO = pytest.mark.parametrize("goes_too", [False, True], ids=["backend_lives", "backend_gone"])


class Talk:
    """An established flow through a frontend that is removed then; another frontend has the same backend."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int, *, local: bool) -> None:
        """Open the flow and establish it."""
        self.world, self.fam, self.hook, self.proto, self.local = world, fam, hook, proto, local
        address = fam.local(1) if local else fam.remote(1)
        self.backend: BackendRow = world.backend(fam, address, 8080, proto, local=local)
        self.service: ServiceRow = world.service(fam, fam.vip, 80, proto, [self.backend])
        world.service(fam, fam.vip2, 80, proto, [self.backend])
        self.at_backend = expect.source(self.from_client("S"))
        self.from_backend("SA")
        for _ in range(2):
            assert expect.destination(self.from_client("A")) == self.backend.endpoint

    def from_client(self, flags: str = "PA") -> Outcome:
        """Send a packet of the client, large enough for the fast path."""
        fam, numbers = self.fam, {"seq": 100, "ack": 555} if self.proto == TCP else {}
        packet = craft.segment(fam, self.proto, fam.client, 40000, fam.vip, 80, flags, load=bytes(100), **numbers)
        return self.world.run(self.hook, craft.frame(packet))

    def from_backend(self, flags: str = "PA") -> Outcome:
        """Send a packet of the backend; the client acknowledges its SYN."""
        numbers = {"seq": 554 if "S" in flags else 555} if self.proto == TCP else {}
        if self.local:
            reply = expect.local_reply(self.fam, self.proto, self.backend, *self.at_backend, flags, **numbers)
            return expect.at_pod(self.world, reply)
        frame = expect.remote_reply(self.fam, self.proto, self.backend, self.at_backend[1], flags, **numbers)
        return self.world.run(self.hook, frame, self.world.net.lb1)

    def remove(self, *, backend: bool = False, swept: bool = True) -> None:
        """Remove the frontend, and its backend with it if wanted, as a plan does; let the sweeper pass."""
        self.world.remove_service(self.service)
        if backend:
            self.world.remove_backend(self.backend)
        if swept:
            sweep(self.world, self.fam)


def is_reset(out: Outcome, fam: Family, reason: Reason) -> None:
    """Assert that the client gets a RST from the frontend that it takes: with the number it waits for."""
    assert out.forwarded
    assert out.counted == {reason: 1}
    assert (expect.source(out), expect.destination(out)) == ((fam.vip, 80), (fam.client, 40000))
    segment = craft.decode(out.packet)[TcpLayer]
    assert (segment.seq, str(segment.flags)) == (555, "R")


@BOTH_WAYS
@GOES_TOO
def test_tcp_is_reset(world: World, fam: Family, hook: str, *, local: bool, goes_too: bool) -> None:
    """After a sweep the client's next packet is answered, and each one after it: a RST may be lost."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.remove(backend=goes_too)
    for flags in ("PA", "A", "FA"):
        is_reset(talk.from_client(flags), fam, Reason.REJECT_SERVICE_GONE)
    sweep(world, fam)
    is_reset(talk.from_client(), fam, Reason.REJECT_SERVICE_GONE)


@BOTH_WAYS
def test_udp_is_unreachable(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """A datagram is answered with port unreachable from the frontend."""
    talk = Talk(world, fam, hook, UDP, local=local)
    talk.remove()
    for _ in range(2):
        out = talk.from_client()
        assert out.counted == {Reason.REJECT_SERVICE_GONE: 1}
        seen = expect.parsed(out)
        assert seen.icmp == ((3, 3) if fam.version == 4 else (1, 4))
        assert (fam.text(seen.src), fam.text(seen.dst)) == (fam.vip, fam.client)


@BOTH_WAYS
def test_a_datagram_without_an_answer_is_told_as_well(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """UDP has no handshake to wait for: after the sweep the next one is unreachable."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 53, UDP, local=local)
    service = world.service(fam, fam.vip, 53, UDP, [backend])
    frame = craft.frame(craft.udp(fam, fam.client, 40000, fam.vip, 53, bytes(100)))
    for _ in range(2):
        assert expect.destination(world.run(hook, frame)) == backend.endpoint
    world.remove_service(service)
    sweep(world, fam)
    assert world.run(hook, frame).counted == {Reason.REJECT_SERVICE_GONE: 1}


@BOTH_WAYS
def test_until_the_sweep_the_conversation_goes_on(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Between the removal and the sweep both directions are translated as before: no end waits for a lost packet."""
    for proto in (TCP, UDP):
        world.reset()
        talk = Talk(world, fam, hook, proto, local=local)
        talk.remove(swept=False)
        for _ in range(2):
            assert expect.destination(talk.from_client()) == talk.backend.endpoint
            answer = talk.from_backend()
            assert (expect.source(answer), expect.destination(answer)) == ((fam.vip, 80), (fam.client, 40000))


@BOTH_WAYS
def test_the_end_of_a_connection_needs_no_sweep(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Packets beyond the fast path get the error at once."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.remove(swept=False)
    is_reset(talk.from_client("FA"), fam, Reason.REJECT_SERVICE_GONE)


@BOTH_WAYS
@GOES_TOO
def test_what_the_backend_says_reaches_the_client(
    world: World, fam: Family, hook: str, *, local: bool, goes_too: bool
) -> None:
    """A client that only receives gets a reply, answers, and gets a RST; its own RST ends the backend's side."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.remove(backend=goes_too)
    answer = talk.from_backend()
    assert (expect.source(answer), expect.destination(answer)) == ((fam.vip, 80), (fam.client, 40000))
    is_reset(talk.from_client("A"), fam, Reason.REJECT_SERVICE_GONE)
    answer = talk.from_backend()
    assert expect.destination(answer) == (fam.client, 40000)
    told = talk.from_client("R")
    assert (expect.source(told), expect.destination(told)) == (talk.at_backend, talk.backend.endpoint)


@BOTH_WAYS
@pytest.mark.parametrize("gen", [0, 0x7E, 0x7F, 0x80, 0xFE, 0xFF])
def test_the_clients_rst_reaches_a_backend_that_is_gone(
    world: World, fam: Family, hook: str, gen: int, *, local: bool
) -> None:
    """Whatever its generation was, also the last one before the wrap: after a second removal it belongs to no flow."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, local=local, gen=gen)
    service = world.service(fam, fam.vip, 80, TCP, [backend])
    frames = {
        flags: craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80, flags, seq=1, ack=1, load=bytes(60)))
        for flags in ("S", "A", "R")
    }
    source = expect.source(world.run(hook, frames["S"]))
    answer = (
        expect.local_reply(fam, TCP, backend, *source) if local else expect.remote_reply(fam, TCP, backend, source[1])
    )
    expect.at_pod(world, answer) if local else world.run(hook, answer, world.net.lb1)
    assert expect.destination(world.run(hook, frames["A"])) == backend.endpoint
    world.remove_service(service)
    world.remove_backend(backend)
    assert world.run(hook, frames["A"]).counted == {Reason.REJECT_SERVICE_GONE: 1}
    assert expect.destination(world.run(hook, frames["R"])) == backend.endpoint
    world.path_flags(backend, bump=True)  # its record was another backend's meanwhile
    assert world.run(hook, frames["R"]).dropped


@BOTH_WAYS
def test_new_connections_are_the_stacks(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """An address that is no frontend any more is like any other one, also for a port that had a flow."""
    talk = Talk(world, fam, hook, TCP, local=local)
    talk.remove()
    for port in (40000, 40001):
        frame = craft.frame(craft.tcp(fam, fam.client, port, fam.vip, 80))
        expect.untouched(world.run(hook, frame), frame)


@BOTH_WAYS
def test_other_frontends_of_the_backend_do_not_notice(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """A flow through the other frontend continues, with or without a sweep."""
    talk = Talk(world, fam, hook, TCP, local=local)
    frames = [craft.frame(craft.tcp(fam, fam.client2, 41000, fam.vip2, 80, flags)) for flags in ("S", "A")]
    before = world.run(hook, frames[0])
    talk.remove()
    after = world.run(hook, frames[1])
    assert (expect.source(after), expect.destination(after)) == (expect.source(before), expect.destination(before))


@BOTH_WAYS
def test_a_frontend_that_comes_back_takes_the_flow_of_a_datagram(
    world: World, fam: Family, hook: str, *, local: bool
) -> None:
    """UDP has no connection to lose: with the frontend made again the flow is given to it; its replies are the frontend's."""
    talk = Talk(world, fam, hook, UDP, local=local)
    talk.remove()
    world.service(fam, fam.vip, 80, UDP, [talk.backend])
    out = talk.from_client()
    assert out.counted == {Reason.FWD_RESELECTED: 1}
    talk.at_backend = expect.source(out)
    answer = talk.from_backend()
    assert (expect.source(answer), expect.destination(answer)) == ((fam.vip, 80), (fam.client, 40000))
    sweep(world, fam)
    assert expect.destination(talk.from_client()) == talk.backend.endpoint


@pytest.mark.parametrize("swept", [False, True], ids=["at_once", "after_a_sweep"])
def test_the_next_connection_of_the_port_hears_its_own_replies(
    world: World, fam: Family, hook: str, *, swept: bool
) -> None:
    """A local backend that went with its frontend is back under another; the client's port connects to it. It has the earlier
    connection and challenges that SYN (RFC 5961 §4.2), so the next one comes from a SNAT port.
    """
    talk = Talk(world, fam, hook, TCP, local=True)
    talk.remove(backend=True, swept=swept)
    back = world.backend(fam, talk.backend.address, 8080, TCP, local=True)
    world.service(fam, fam.vip2, 80, TCP, [back])
    syn = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip2, 80)))
    assert expect.destination(syn) == back.endpoint
    challenge = expect.local_reply(fam, TCP, back, *expect.source(syn), "A")
    expect.untouched(expect.at_pod(world, challenge), challenge)
    syn = world.run(hook, craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip2, 80)))
    assert expect.source(syn)[0] == fam.node
    answer = expect.at_pod(world, expect.local_reply(fam, TCP, back, *expect.source(syn), "SA"))
    assert (expect.source(answer), expect.destination(answer)) == ((fam.vip2, 80), (fam.client, 40000))
