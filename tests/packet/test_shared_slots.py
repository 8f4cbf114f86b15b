"""Two backends whose SNAT ports fall into one slot: packets of one of them do not affect the flow of the other.

The table has 64 slots and there is one port, so one backend in 64 shares the slot of another one.
"""

from __future__ import annotations

import pytest

from tests.packet import expect, table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld
from tests.packet.craft import Family
from tests.packet.world import UDP, BackendRow

TRIES = 500
OTHERS = ["address", "port", "protocol"]


def client_of(timed: TimedWorld, row: BackendRow) -> Caller:
    """Enter a service with this backend alone, and return a client of it."""
    world = timed.world
    return Caller(world, world.service(row.family, row.family.vip, 80, row.proto, [row]))


def slot_of(timed: TimedWorld, row: BackendRow) -> int:
    """Return the slot of the port towards a backend, by taking it for a moment."""
    client_of(timed, row).send("S")
    (index,) = table.held_slot_indexes(timed.world, row.family)
    timed.world.forget_flows()
    return index


def pair(timed: TimedWorld, fam: Family, what: str) -> tuple[BackendRow, BackendRow]:
    """Return two backends of one slot that differ in this only."""
    world = timed.world
    first = world.backend(fam, fam.remote(1), 8080)
    slot = slot_of(timed, first)
    for n in range(2, TRIES // 2):
        if what == "protocol":
            first = world.backend(fam, fam.remote(n), 8080)
            slot = slot_of(timed, first)
            other = world.backend(fam, fam.remote(n), 8080, UDP)
        elif what == "port":
            other = world.backend(fam, fam.remote(1), 8080 + n)
        else:
            other = world.backend(fam, fam.remote(n), 8080)
        if slot_of(timed, other) == slot:
            return first, other
    pytest.fail("no two backends share a slot")


@pytest.mark.parametrize("what", OTHERS)
def test_a_backend_that_shares_the_slot_is_a_stranger(still_world: TimedWorld, fam: Family, what: str) -> None:
    """Its packets to the port pass untouched, and those of the flow's own backend reach the client."""
    first, other = pair(still_world, fam, what)
    talk = client_of(still_world, first)
    talk.establish()
    world = still_world.world
    for row in (other, first):
        frame = expect.remote_reply(fam, row.proto, row, talk.source[1], "A")
        out = world.run(talk.hook, frame, world.net.lb1)
        if row is other:
            expect.untouched(out, frame)
        else:
            expect.replied(out, frame, talk.service, *talk.endpoint)
