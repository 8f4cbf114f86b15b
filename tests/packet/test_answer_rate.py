"""The rate of the programs' answers, and packets that get none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from scapy.layers.inet import TCP as TcpLayer

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect
from tests.packet.craft import NODE_MAC, Family
from tests.packet.harness import one_cpu, open_world
from tests.packet.world import TC_EGRESS, TCP, UDP, World

RATE = 5  # answers a second
GROUPS = {4: ("224.0.0.10", "255.255.255.250"), 6: ("ff02::10", "ff0e::7e10")}
NEAR_GROUPS = {4: ("223.255.255.10", "203.0.113.10"), 6: ("fe80::10", "fd00:ff::10")}


@pytest.fixture(scope="module")
def slow_world() -> Iterator[World]:
    """Load programs that may answer five times a second, on one CPU."""
    with one_cpu(), open_world(ProgramSettings(reject_rate=RATE)) as world:
        yield world


def refused(fam: Family, proto: int = TCP) -> bytes:
    """Return a request to the service that has no backend."""
    return craft.frame(craft.segment(fam, proto, fam.client, 40000, fam.vip, 80))


def flood(world: World, hook: str, frame: bytes, enough: Callable[[int], bool]) -> int:
    """Send a frame until it was enough; return how often it was answered."""
    sent, before = 0, world.maps.counters([Reason.REJECT_NO_BACKEND])[0][0]
    with world.net.inside():
        while not enough(sent):
            world.raw(hook, frame)
            sent += 1
    return int(world.maps.counters([Reason.REJECT_NO_BACKEND])[0][0] - before)


def test_a_pause_saves_up_no_more_than_its_time(slow_world: World, fam: Family, hook: str) -> None:
    """Of bursts a quarter of a second apart each gets what came in since the one before; after a second's peace all is there."""
    world = slow_world
    world.reset()
    world.service(fam, fam.vip, 80, TCP)
    time.sleep(1.1)
    began = time.monotonic()
    first = flood(world, hook, refused(fam), lambda sent: sent >= 4 * RATE)
    assert RATE <= first <= RATE * (1.1 + time.monotonic() - began)
    later = 0
    for _ in range(6):
        time.sleep(0.25)
        later += flood(world, hook, refused(fam), lambda sent: sent >= 4 * RATE)
    assert later >= 6  # one in a quarter of a second at least
    assert first + later <= RATE * (1.1 + time.monotonic() - began) + 1


def test_a_flood_is_answered_at_the_rate(slow_world: World, fam: Family, hook: str) -> None:
    """What is refused meanwhile costs nothing of what comes in."""
    world = slow_world
    world.reset()
    world.service(fam, fam.vip, 80, TCP)
    frame = refused(fam)
    flood(world, hook, frame, lambda sent: sent >= 4 * RATE)
    end = time.monotonic() + 0.9
    answered = flood(world, hook, frame, lambda _: time.monotonic() >= end)
    answered += flood(world, hook, frame, lambda sent: sent >= 4 * RATE)  # what came in while this process had to wait
    assert answered >= RATE - 2


@pytest.mark.parametrize("first", ["refused", "too big"])
def test_refusals_and_errors_of_the_way_are_counted_apart(
    slow_world: World, fam: Family, hook: str, first: str
) -> None:
    """A flood of either does not use up the answers of the other: path MTU discovery continues beside a service without backends."""
    world = slow_world
    world.reset()
    world.service(fam, fam.vip, 80, TCP)
    world.service(fam, fam.vip2, 80, TCP, [world.backend(fam, fam.remote(1), 8080, mtu=1300)])
    packet = craft.tcp(fam, fam.client, 40000, fam.vip2, 80, "A", load=bytes(1300))
    if fam.version == 4:
        packet.flags = "DF"
    frames = {"refused": refused(fam), "too big": craft.frame(packet)}
    other = frames.pop("too big" if first == "refused" else "refused")
    time.sleep(1.1)
    answered = [world.run(hook, frames[first]).forwarded for _ in range(6 * RATE)]
    assert answered[0]
    assert not all(answered)
    assert world.run(hook, other).forwarded


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_a_group_is_never_an_answers_source(world: World, fam: Family, hook: str, proto: int) -> None:
    """Packets to groups are not answered (RFC 1122 §3.2.2, RFC 4443 §2.4 e); those to neighbouring addresses are."""
    for address in GROUPS[fam.version]:
        world.service(fam, address, 80, proto)
        out = world.run(hook, craft.frame(craft.segment(fam, proto, fam.client, 40000, address, 80)))
        assert out.dropped
        assert out.counted == {Reason.DROP_NO_BACKEND: 1}
    for address in NEAR_GROUPS[fam.version]:
        world.service(fam, address, 80, proto)
        out = world.run(hook, craft.frame(craft.segment(fam, proto, fam.client, 40000, address, 80)))
        assert out.counted == {Reason.REJECT_NO_BACKEND: 1}
        assert fam.text(expect.parsed(out).src) == address


@pytest.mark.parametrize("mac", ["01:00:00:00:00:01", "33:33:00:00:00:01"])
def test_a_frame_to_a_group_is_not_answered(world: World, fam: Family, mac: str) -> None:
    """It would come back from an address that is no station's."""
    world.service(fam, fam.vip, 80, TCP)
    sent = craft.frame(craft.tcp(fam, fam.node, 40000, fam.vip, 80), src=NODE_MAC, dst=mac)
    out = world.run(TC_EGRESS, sent)
    assert out.dropped
    assert out.counted == {Reason.DROP_NO_BACKEND: 1}


def test_a_header_that_is_longer_than_its_segment(world: World, fam: Family, hook: str) -> None:
    """Of the numbers of a RST the SYN alone counts: a segment has no fewer bytes of data than none."""
    world.service(fam, fam.vip, 80, TCP)
    packet = craft.tcp(fam, fam.client, 40000, fam.vip, 80, "S", seq=1000)
    packet[TcpLayer].dataofs = 15
    out = world.run(hook, craft.frame(packet))
    assert out.forwarded
    segment = craft.decode(out.packet)[TcpLayer]
    assert (segment.seq, segment.ack, str(segment.flags)) == (0, 1001, "RA")
