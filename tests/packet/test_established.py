"""A sender with a forged source cannot keep a SNAT port by its packets or their answers. Time passes only where a test sets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Event, Reason
from tests.packet import craft, expect, table
from tests.packet.clock import open_timed_world
from tests.packet.craft import Family
from tests.packet.table import CLOSING, SLOT_UNIT
from tests.packet.world import TCP, UDP, BackendRow, Outcome, World

PORTS = 4


@pytest.fixture(scope="module")
def narrow_world() -> Iterator[World]:
    """Load programs with four SNAT ports, for which time stands still."""
    options = ProgramSettings(snat_port_min=2000, snat_port_max=2000 + PORTS - 1)
    with open_timed_world(options) as timed:
        yield timed.world


class Crowd:
    """Flows of one client to one remote backend that has PORTS ports."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int) -> None:
        """Enter a service into an empty world."""
        world.reset()
        self.world, self.fam, self.hook, self.proto = world, fam, hook, proto
        self.backend: BackendRow = world.backend(fam, fam.remote(1), 8080, proto)
        world.service(fam, fam.vip, 80, proto, [self.backend])
        self.ports: dict[int, int] = {}

    def from_client(self, number: int, flags: str) -> Outcome:
        """Send a packet of a flow's client."""
        frame = craft.frame(
            craft.segment(self.fam, self.proto, self.fam.client, 40000 + number, self.fam.vip, 80, flags)
        )
        out = self.world.run(self.hook, frame)
        if out.forwarded:
            self.ports[number] = expect.source(out)[1]
        return out

    def from_backend(self, number: int, flags: str) -> Outcome:
        """Send a packet of the backend."""
        frame = expect.remote_reply(self.fam, self.proto, self.backend, self.ports[number], flags)
        return self.world.run(self.hook, frame, self.world.net.lb1)

    def talk(self, words: list[str], *numbers: int) -> None:
        """Let each flow have the same conversation; `<` is the backend's."""
        for number in numbers:
            for word in words:
                (self.from_backend if word.startswith("<") else self.from_client)(number, word.lstrip("<"))

    def later(self, ticks: int) -> None:
        """Let time pass."""
        table.later(self.world, self.fam, ticks)

    def admits(self, number: int = 99) -> bool:
        """Whether a new flow gets a port, as one that was taken from another."""
        out = self.from_client(number, "S")
        assert out.forwarded != out.dropped
        assert out.counted == ({Reason.FWD_NEW: 1} if out.forwarded else {Reason.DROP_SNAT_EXHAUSTED: 1})
        return out.forwarded


ALL = range(PORTS)
FORGED = {  # what a flood can make of a flow
    "syn": (TCP, ["S"]),
    "answered syn": (TCP, ["S", "<SA"]),
    "answered syn, again": (TCP, ["S", "<SA", "S", "<SA", "<SA"]),
    "ack": (TCP, ["A"]),
    "acks": (TCP, ["A", "A", "PA"]),
    "datagram": (UDP, [""]),
    "datagrams": (UDP, ["", "", ""]),
    "answered datagram": (UDP, ["", "<"]),
    "answered datagrams": (UDP, ["", "<", "", "<", "<"]),
}
LIVING = {
    "client speaks": (TCP, ["S", "<SA", "A"]),
    "backend speaks": (TCP, ["S", "<SA", "A", "<PA"]),
    "from the middle": (TCP, ["A", "<A"]),
    "half closed": (TCP, ["S", "<SA", "A", "FA", "<A"]),
}


@pytest.mark.parametrize("case", list(FORGED))
def test_a_flood_loses_its_ports(narrow_world: World, fam: Family, hook: str, case: str) -> None:
    """Held for the moment of a handshake, taken over after it, whatever the backend answered; and the loss is counted."""
    proto, words = FORGED[case]
    crowd = Crowd(narrow_world, fam, hook, proto)
    crowd.talk(words, *ALL)
    assert table.held_slots(narrow_world, fam) == PORTS
    assert not crowd.admits(98)
    before = narrow_world.counter(Event.SNAT_RECLAIMED)[0]
    crowd.later(SLOT_UNIT)
    assert crowd.admits()
    assert narrow_world.counter(Event.SNAT_RECLAIMED)[0] == before + 1
    assert table.held_slots(narrow_world, fam) == PORTS
    back = crowd.from_backend(99, "SA")
    assert expect.destination(back) == (fam.client, 40099)


@pytest.mark.parametrize("case", list(LIVING))
def test_an_established_flow_keeps_its_port(narrow_world: World, fam: Family, hook: str, case: str) -> None:
    """However long it is idle, up to its time-out."""
    proto, words = LIVING[case]
    crowd = Crowd(narrow_world, fam, hook, proto)
    crowd.talk(words, *ALL)
    for _ in range(3):
        crowd.later(240 * SLOT_UNIT)
        assert not crowd.admits()
    places = dict(crowd.ports)
    crowd.talk(["A", "<A"], *ALL)
    assert crowd.ports == places


def test_the_last_second_of_silence_counts(narrow_world: World, fam: Family, hook: str) -> None:
    """A client with a recent packet keeps its port: the port of a silent client is taken."""
    crowd = Crowd(narrow_world, fam, hook, TCP)
    crowd.talk(["S", "<SA"], *ALL)
    crowd.later(SLOT_UNIT)
    for number in (0, 1, 3):
        crowd.from_client(number, "S")
    taken = crowd.ports[2]
    assert crowd.admits()
    assert crowd.ports[99] == taken


def test_a_conversation_of_udp_that_lasts(narrow_world: World, fam: Family, hook: str) -> None:
    """The port is its own as long as it is not silent for 16 ticks; a client's and a backend's datagram show it alike."""
    for last in ("", "<"):
        crowd = Crowd(narrow_world, fam, hook, UDP)
        crowd.talk(["", "<"], *ALL)
        crowd.later(SLOT_UNIT)
        crowd.talk([last], *ALL)
        table.age(narrow_world, fam, 15)
        assert not crowd.admits()
        table.age(narrow_world, fam, 1)
        table.older_slots(narrow_world, fam, 2 * SLOT_UNIT)
        assert crowd.admits()


def test_flows_that_close_give_way(narrow_world: World, fam: Family, hook: str) -> None:
    """FIN of both sides, or RST: the port is free at once."""
    for end in (["FA", "<FA", "A"], ["R"], ["<R"]):
        crowd = Crowd(narrow_world, fam, hook, TCP)
        crowd.talk(["S", "<SA", "A", *end], *ALL)
        assert {flow.state for flow in table.flows(narrow_world, fam)} == {CLOSING}
        crowd.later(SLOT_UNIT)
        assert crowd.admits()


def test_a_port_used_again_is_held_again(narrow_world: World, fam: Family, hook: str) -> None:
    """A SYN on a closed flow begins a handshake, and its end gives the port a full lease."""
    crowd = Crowd(narrow_world, fam, hook, TCP)
    crowd.talk(["S", "<SA", "A", "<R", "S", "<SA", "A"], *ALL)
    crowd.later(100 * SLOT_UNIT)
    assert not crowd.admits()


def test_replies_alone_keep_a_download_alive(narrow_world: World, fam: Family, hook: str) -> None:
    """Nothing but the backend's segments for longer than the time-out."""
    crowd = Crowd(narrow_world, fam, hook, TCP)
    crowd.talk(["S", "<SA", "A"], *ALL)
    places = dict(crowd.ports)
    for _ in range(6):
        crowd.later(300 * SLOT_UNIT)
        crowd.talk(["<A"], *ALL)
    assert not crowd.admits()
    for number in ALL:
        assert expect.destination(crowd.from_backend(number, "A")) == (fam.client, 40000 + number)
        crowd.from_client(number, "A")
    assert crowd.ports == places
