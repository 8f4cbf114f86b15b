"""How small a way may be, and how large a datagram, for tc to send it in fragments."""

from __future__ import annotations

import pytest

from lbagent.maps.reasons import Reason
from tests.packet import expect
from tests.packet.test_fragmentation import PROTOCOLS, V4, large, reassembled, run_cut
from tests.packet.world import TC_INGRESS, World

LEAST = 68  # bytes: every link carries so much (RFC 791 §3.2)
PIECE = LEAST - 20  # bytes of data in each fragment
PIECES = 17


@PROTOCOLS
@pytest.mark.parametrize("size", [LEAST + 1, 20 + PIECES * PIECE - 1, 20 + PIECES * PIECE])
def test_the_smallest_way_there_is(world: World, proto: int, size: int) -> None:
    """48 bytes a fragment, seventeen fragments at most: every byte arrives."""
    backend = world.backend(V4, V4.remote(1), 8080, proto, mtu=LEAST)
    world.service(V4, V4.vip, 80, proto, [backend])
    frame = large(proto, size)
    out, fragments = run_cut(world, frame, "lb1")
    assert out.forwarded, out
    assert len(fragments) == -(-(size - 20) // PIECE)
    whole = reassembled(fragments, LEAST)
    assert expect.destination(whole) == backend.endpoint
    assert whole[54:] == frame[54:]


@PROTOCOLS
@pytest.mark.parametrize(
    ("size", "mtu"),
    [(20 + PIECES * PIECE + 1, LEAST), (LEAST, LEAST - 1), (200, LEAST - 1)],
    ids=["large", "near", "small"],
)
def test_beyond_that_it_is_answered(world: World, proto: int, size: int, mtu: int) -> None:
    """More pieces than are sent, or a way that can be none: fragmentation needed, and nothing is translated."""
    world.service(V4, V4.vip, 80, proto, [world.backend(V4, V4.remote(1), 8080, proto, mtu=mtu)])
    out = world.run(TC_INGRESS, large(proto, size))
    assert out.counted == {Reason.ANSWER_TOO_BIG: 1}
    seen = expect.parsed(out)
    assert (seen.icmp, seen.mtu) == ((3, 4), mtu)
