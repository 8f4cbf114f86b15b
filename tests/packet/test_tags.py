"""VLAN tags: up to two of them are removed, a frame with more passes to the stack."""

from __future__ import annotations

import pytest

from tests.packet import craft, expect
from tests.packet.craft import Family
from tests.packet.world import TCP, XDP, World

TAG = bytes.fromhex("81000005")


def test_three_tags(world: World, fam: Family) -> None:
    """With one more than two the frame passes as it is; with two it is forwarded."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    plain = craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    for tags in (1, 2, 3):
        frame = plain[:12] + TAG * tags + plain[12:]
        out = world.run(XDP, frame)
        if tags < 3:
            assert out.forwarded, tags
        else:
            expect.untouched(out, frame)


@pytest.mark.parametrize("at", [0, 1, 14, 18])
def test_another_protocol_behind_a_tag(world: World, fam: Family, at: int) -> None:
    """It is no packet of a service, wherever in the frame the bytes of a packet to a VIP stand; nothing is counted."""
    world.service(fam, fam.vip, 80, TCP, [world.backend(fam, fam.remote(1), 8080)])
    packet = bytes(craft.tcp(fam, fam.client, 40000, fam.vip, 80))
    destination = at + (16 if fam.version == 4 else 24)
    frame = bytearray(craft.frame(craft.tcp(fam, fam.client, 40000, fam.vip, 80))[:12] + TAG + b"\x88\xb5" + bytes(80))
    if at == 18:
        frame[at : at + len(packet)] = packet
    else:
        frame[destination : destination + len(fam.packed(fam.vip))] = fam.packed(fam.vip)
    assert frame[16:18] not in (b"\x08\x00", b"\x86\xdd")
    out = world.run(XDP, bytes(frame))
    expect.untouched(out, bytes(frame))
    assert out.counted == {}
