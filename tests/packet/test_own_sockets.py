"""A process of the node uses a service without backends: the program's answer reaches its socket, on any device."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from lbagent.kernel import bpf_link
from lbagent.kernel.features import has_tcx
from lbagent.maps.reasons import Reason
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.world import TC_EGRESS, TCP, UDP, World

PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def leaving_world() -> Iterator[World]:
    """Load the programs and attach tc_egress to lb0."""
    if not has_tcx():
        pytest.skip("TCX links need Linux 6.6")
    with open_world() as world:
        with world.net.inside():
            link = bpf_link.link_create(world.programs[TC_EGRESS], world.net.lb0, bpf_link.AttachType.TCX_EGRESS)
        try:
            yield world
        finally:
            os.close(link)


@pytest.mark.parametrize("proto", [TCP, UDP])
def test_refused_at_once(leaving_world: World, fam: Family, proto: int) -> None:
    """As by a port that is closed: by a RST, or by port unreachable."""
    world = leaving_world
    world.reset()
    world.service(fam, fam.vip, 80, proto)
    before = world.maps.counters([Reason.REJECT_NO_BACKEND])[0][0]
    with world.net.inside(), socket.socket(fam.af, socket.SOCK_STREAM if proto == TCP else socket.SOCK_DGRAM) as asking:
        asking.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionRefusedError):
            asking.connect((fam.vip, 80))
            asking.send(b"question")
            asking.recv(1)
    assert world.maps.counters([Reason.REJECT_NO_BACKEND])[0][0] == before + 1
