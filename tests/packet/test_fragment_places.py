"""Fragments on less usual ways: behind tags, and of the node's own datagrams."""

from __future__ import annotations

import pytest

from tests.packet.craft import BACKEND_MAC, LOCAL_MAC, NODE2_MAC, NODE_MAC, POD_MAC, ROUTER_MAC, Family
from tests.packet.test_fragments import pieces, service
from tests.packet.world import TC_EGRESS, XDP, World

TAG = bytes.fromhex("81000005")


def framed(packet: bytes, *, src: str, dst: str, tags: int = 0) -> bytes:
    """Put an IP packet into a frame."""
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return bytes.fromhex((dst + src).replace(":", "")) + TAG * tags + kind + packet


@pytest.mark.parametrize("tags", [1, 2])
def test_tags_of_fragments_end_where_their_device_ends(world: World, fam: Family, tags: int) -> None:
    """Each fragment leaves by the other device without them."""
    backend = service(world, fam, local=False)
    sent = pieces(fam, fam.client, 40000, fam.vip, 53)
    outs = [world.run(XDP, framed(packet, src=ROUTER_MAC, dst=NODE_MAC, tags=tags)) for packet in sent]
    assert [out.forwarded for out in outs] == [True, True]
    port = int.from_bytes(outs[0].packet[14 + (20 if fam.version == 4 else 48) :][:2], "big")
    wanted = pieces(fam, fam.node2, port, backend.address, 53, ttl=63)
    assert [out.packet for out in outs] == [framed(packet, src=NODE2_MAC, dst=BACKEND_MAC) for packet in wanted]


def test_the_nodes_own_fragments_reach_a_pod(world: World, fam: Family) -> None:
    """They were about to leave, and all of them go to the pod's device instead, as what is whole does."""
    backend = service(world, fam, local=True)
    sent = pieces(fam, fam.node, 40000, fam.vip, 53)
    outs = [world.run(TC_EGRESS, framed(packet, src=NODE_MAC, dst=ROUTER_MAC), world.net.lb0) for packet in sent]
    assert [out.forwarded for out in outs] == [True, True]
    wanted = pieces(fam, fam.node, 40000, backend.address, 53)
    assert [out.packet for out in outs] == [framed(packet, src=POD_MAC, dst=LOCAL_MAC) for packet in wanted]
