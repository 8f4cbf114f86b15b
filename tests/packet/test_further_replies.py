"""Further source addresses of the node, and replies that have nothing to do with them."""

from __future__ import annotations

import pytest

from tests.packet import expect
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.test_clock import caller
from tests.packet.test_further_sources import PORTS, Crowd, further_world, loaded_further_world
from tests.packet.world import TCP, World

__all__ = ["further_world", "loaded_further_world"]  # fixtures


def test_a_local_backend_is_heard(further_world: World, fam: Family, hook: str) -> None:
    """Its client keeps its address, whatever addresses the node has."""
    talk = caller(further_world, fam, hook, local=True)
    talk.establish()
    assert talk.source == talk.endpoint
    assert talk.is_answered("A")


def test_the_port_beside_one_that_is_held(further_world: World, fam: Family, hook: str) -> None:
    """It is free: what the backend sends there is for no client."""
    for n in range(50):
        further_world.reset()
        crowd = Crowd(further_world, fam, hook)
        talk = Caller(further_world, crowd.service, port=40000 + n, hook=hook)
        talk.establish()
        if talk.source[1] - 1 in PORTS:
            break
    else:
        pytest.fail("no client has a port above the lowest one")
    frame = expect.remote_reply(fam, TCP, crowd.backend, talk.source[1] - 1, "A")
    expect.untouched(further_world.run(hook, frame, further_world.net.lb1), frame)
    assert talk.is_answered()
