"""VLAN tags: up to two of them are taken off, a frame with more is the stack's."""

from __future__ import annotations

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
