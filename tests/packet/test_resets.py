"""A RST ends a connection, and a repeated one still reaches its receiver."""

from __future__ import annotations

import pytest

from lbagent.maps.reasons import Reason
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.craft import Family
from tests.packet.world import TCP, World


def talking(world: World, fam: Family, hook: str, *, local: bool) -> Caller:
    """Return a client's established connection."""
    backend = world.backend(fam, fam.local(1) if local else fam.remote(1), 8080, local=local)
    talk = Caller(world, world.service(fam, fam.vip, 80, TCP, [backend]), hook=hook)
    talk.establish()
    return talk


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_the_backend_resets_twice(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """The second RST answers a segment that was on its way: the client gets it, too, and the flow holds its port until it expires."""
    talk = talking(world, fam, hook, local=local)
    held = table.held_slots(world, fam)
    for _ in range(2):
        assert talk.is_answered("R")
        assert talk.stays("PA")
    assert table.held_slots(world, fam) == held == (not local)


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_the_client_resets_twice(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Both reach the backend, from where the connection came."""
    talk = talking(world, fam, hook, local=local)
    assert talk.stays("R")
    assert talk.is_answered("PA")
    assert talk.stays("R")


@pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])
def test_the_end_counts_as_the_rest_does(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """FIN and RST leave the fast path; the counters show their path."""
    talk = talking(world, fam, hook, local=local)
    for flags in ("FA", "R"):
        assert talk.send(flags).counted == {Reason.FWD_LOCAL if local else Reason.FWD_ESTABLISHED: 1}
