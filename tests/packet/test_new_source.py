"""The node's address towards a backend changes while flows live: what is sent from it then is right."""

from __future__ import annotations

from lbagent.maps.layout import PATH_L4_SHIFT, PathFlag, PathL4
from tests.packet import craft, expect
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.world import TCP, World


def test_what_a_flow_sends_from_another_address_has_the_right_checksum(world: World, fam: Family, hook: str) -> None:
    """Of IPv6 an entry keeps what the checksum changes by: it is added up again, and again when the first address is back."""
    backend = world.backend(fam, fam.remote(1), 8080)
    talk = Caller(world, world.service(fam, fam.vip, 80, TCP, [backend]), hook=hook)
    talk.establish()
    flags = PathFlag.LIVE | PathFlag.SELECTABLE | PathL4.TCP << PATH_L4_SHIFT
    hop = world.nexthop(world.net.lb1, craft.BACKEND_MAC, craft.NODE2_MAC)
    _, port = talk.source
    for source in (fam.node, fam.node, fam.node2, fam.node):
        world.path(backend, flags=flags, nexthop=hop, mtu=1500, gen=1, snat=source)
        out = talk.send("A")
        assert expect.source(out) == (source, port)
        assert expect.destination(out) == backend.endpoint
