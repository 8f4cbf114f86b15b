"""A TCP header that is shorter than one by its data offset: the least is five words (RFC 9293 §3.1)."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP as TcpLayer
from scapy.layers.inet import IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt
from scapy.packet import Raw

from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.craft import Family
from tests.packet.test_direct_tcp import Scene, one
from tests.packet.test_fragment_places import framed
from tests.packet.test_fragments import as_tcp, pieces
from tests.packet.test_state import Talk
from tests.packet.world import TC_EGRESS, TCP, World

__all__ = ["one"]  # fixture

SHAPES = pytest.mark.parametrize("shape", ["plain", "tagged", "headers"])
SHORT = pytest.mark.parametrize("words", range(5))


def segment(
    fam: Family, words: int, flags: str = "S", *, shape: str = "plain", dst: str = "", dport: int = 80, load: int = 60
) -> bytes:
    """Return a frame of the client whose data offset has so many words."""
    ip = fam.ip(fam.client, dst or fam.vip)
    if shape == "headers":
        ip = (
            fam.ip(fam.client, dst or fam.vip, options=[IPOption_NOP()] * 4)
            if fam.version == 4
            else ip / IPv6ExtHdrDestOpt()
        )
    packet = ip / TcpLayer(sport=40000, dport=dport, flags=flags, dataofs=words, ack=1) / Raw(bytes(load))
    return craft.frame(packet, vlans=(7,) if shape == "tagged" else ())


@pytest.fixture
def served(world: World, fam: Family) -> World:
    """Have a service for TCP."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080, TCP)])
    return world


@SHAPES
@SHORT
@pytest.mark.parametrize("flags", ["S", "A", "FA", "SA", "R"])
def test_it_begins_no_flow(served: World, fam: Family, hook: str, words: int, flags: str, shape: str) -> None:
    out = served.run(hook, segment(fam, words, flags, shape=shape))
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}
    assert table.flows(served, fam) == []
    assert table.held_slots(served, fam) == 0


@SHAPES
@pytest.mark.parametrize("words", [5, 6, 15])
def test_what_has_all_of_it_begins_one(served: World, fam: Family, hook: str, words: int, shape: str) -> None:
    assert served.run(hook, segment(fam, words, shape=shape)).forwarded
    assert len(table.flows(served, fam)) == 1


@SHORT
def test_on_its_way_out(served: World, fam: Family, words: int) -> None:
    """What the node itself sends obeys the same rule."""
    out = served.run(TC_EGRESS, segment(fam, words), served.net.lb0)
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}


@SHORT
def test_a_first_fragment(served: World, fam: Family, hook: str, words: int) -> None:
    first = bytearray(as_tcp(fam, pieces(fam, fam.client, 40000, fam.vip, 80)[0]))
    first[(20 if fam.version == 4 else 48) + 12] = words << 4
    out = served.run(hook, framed(bytes(first), src=craft.ROUTER_MAC, dst=craft.NODE_MAC))
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("flags", ["S", "FA", "R"])
def test_it_changes_no_flow(world: World, fam: Family, hook: str, flags: str, *, local: bool) -> None:
    """Neither its state nor the time of its last packet."""
    talk = Talk(world, fam, hook, TCP, local=local)
    for word in ("S", "<SA", "A"):
        (talk.from_backend if word.startswith("<") else talk.from_client)(word.lstrip("<"))
    table.age(world, fam, 20)
    before = table.only(world, fam)
    out = world.run(hook, segment(fam, 4, flags))
    assert out.dropped
    assert out.counted == {Reason.DROP_MALFORMED: 1}
    assert table.only(world, fam) == before


def test_only_what_is_for_a_frontend_is_dropped(served: World, fam: Family, hook: str) -> None:
    """Other packets are not checked."""
    frame = segment(fam, 4, dport=81)
    out = served.run(hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}


@SHORT
def test_a_direct_one_leaves_nothing_behind(one: Scene, words: int) -> None:
    """It is the pod's to drop, also where a SYN of its port would have become a flow."""
    world, fam = one.caller.world, one.pod.family
    before = table.flows(world, fam)
    frame = segment(fam, words, dst=one.pod.address, dport=one.pod.port)
    out = world.run(one.caller.hook, frame)
    expect.untouched(out, frame)
    assert out.counted == {Reason.PASS_NOT_SERVICE: 1}
    assert table.flows(world, fam) == before
