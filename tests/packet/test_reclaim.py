"""All SNAT ports are held: one whose flow was never established and is silent is taken, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.clock import open_timed_world
from tests.packet.craft import Family
from tests.packet.world import TCP, XDP, BackendRow, Outcome, World

PORTS = {2000, 2001, 2002, 2003}
AGE = 3 * table.SLOT_UNIT  # ticks


@pytest.fixture(scope="module")
def narrow() -> Iterator[World]:
    """Load programs with four SNAT ports, for which time stands still."""
    with open_timed_world(ProgramSettings(snat_port_min=2000, snat_port_max=2003)) as timed:
        yield timed.world


@pytest.fixture
def backend(narrow: World, fam: Family) -> BackendRow:
    """Enter a service with one remote backend into an empty world."""
    narrow.reset()
    row = narrow.backend(fam, fam.remote(1), 8080)
    narrow.service(fam, fam.vip, 80, TCP, [row])
    return row


def send(world: World, fam: Family, port: int, flags: str) -> Outcome:
    """Send a segment of the client's flow from that port."""
    return world.run(XDP, craft.frame(craft.tcp(fam, fam.client, port, fam.vip, 80, flags)))


def answer(world: World, fam: Family, backend: BackendRow, port: int, flags: str = "SA") -> Outcome:
    """Send the backend's segment to a SNAT port."""
    return world.run(XDP, expect.remote_reply(fam, TCP, backend, port, flags), world.net.lb1)


def test_a_handshake_under_way_is_left_in_peace(narrow: World, fam: Family, backend: BackendRow) -> None:
    """Four SYNs of this moment hold the four ports: the fifth finds none."""
    assert {expect.source(send(narrow, fam, 40000 + n, "S"))[1] for n in range(4)} == PORTS
    assert send(narrow, fam, 40004, "S").counted == {Reason.DROP_SNAT_EXHAUSTED: 1}


def test_an_old_syn_gives_way_and_an_established_flow_does_not(narrow: World, fam: Family, backend: BackendRow) -> None:
    """Three flows are opened, one never gets beyond its SYN: its port goes to the fifth, the others keep theirs."""
    places = {n: expect.source(send(narrow, fam, 40000 + n, "S")) for n in range(4)}
    for n in range(3):
        answer(narrow, fam, backend, places[n][1])
        send(narrow, fam, 40000 + n, "A")
    table.later(narrow, fam, AGE)
    fifth = send(narrow, fam, 40004, "S")
    assert fifth.forwarded
    assert expect.source(fifth) == places[3]
    assert send(narrow, fam, 40005, "S").dropped
    for n in range(3):
        assert expect.source(send(narrow, fam, 40000 + n, "A")) == places[n]
    assert expect.destination(answer(narrow, fam, backend, places[3][1])) == (fam.client, 40004)


def test_who_lost_a_port_gets_another_one(narrow: World, fam: Family, backend: BackendRow) -> None:
    """The flow that lost its port opens again with its next SYN, with a new port; another segment of it is answered with RST."""
    for n in range(4):
        answer(narrow, fam, backend, expect.source(send(narrow, fam, 40000 + n, "S"))[1])
    table.later(narrow, fam, AGE)
    taken = expect.source(send(narrow, fam, 40004, "S"))
    victims = [n for n in range(4) if send(narrow, fam, 40000 + n, "A").counted[Reason.REJECT_BACKEND_GONE]]
    assert len(victims) == 1
    table.later(narrow, fam, AGE)  # the fifth flow's too: it never proved to live
    again = send(narrow, fam, 40000 + victims[0], "S")
    assert again.forwarded
    assert expect.source(again) == taken
