"""Extra SNAT addresses of the node, and replies that do not concern them."""

from __future__ import annotations

import pytest

from tests.packet import expect
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.test_clock import caller
from tests.packet.test_extra_snat_sources import PORTS, Crowd, extra_snat_world, loaded_extra_snat_world
from tests.packet.world import TCP, World

__all__ = ["extra_snat_world", "loaded_extra_snat_world"]  # fixtures


def test_a_local_backend_is_heard(extra_snat_world: World, fam: Family, hook: str) -> None:
    """Its client keeps its address, whatever addresses the node has."""
    talk = caller(extra_snat_world, fam, hook, local=True)
    talk.establish()
    assert talk.source == talk.endpoint
    assert talk.is_answered("A")


def test_the_port_beside_one_that_is_held(extra_snat_world: World, fam: Family, hook: str) -> None:
    """It is free: the backend's packets to it are for no client."""
    for n in range(50):
        extra_snat_world.reset()
        crowd = Crowd(extra_snat_world, fam, hook)
        talk = Caller(extra_snat_world, crowd.service, port=40000 + n, hook=hook)
        talk.establish()
        if talk.source[1] - 1 in PORTS:
            break
    else:
        pytest.fail("no client has a port above the lowest one")
    frame = expect.remote_reply(fam, TCP, crowd.backend, talk.source[1] - 1, "A")
    expect.untouched(extra_snat_world.run(hook, frame, extra_snat_world.net.lb1), frame)
    assert talk.is_answered()
