"""What establishes a flow, and what a sender with a forged source cannot do: keep a SNAT port by what it sends or has answered."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lbagent.bpf.load.program_settings import Settings
from lbagent.maps.reasons import Event, Reason
from tests.packet import craft, expect, table
from tests.packet.craft import Family
from tests.packet.harness import open_world
from tests.packet.table import CLOSING, EST, MID, NEW, SLOT_UNIT
from tests.packet.test_state import Talk
from tests.packet.world import TCP, UDP, BackendRow, Outcome, World

PORTS = 4
ISN = 0x89ABCDEF  # of the backend


@pytest.fixture(params=[False, True], ids=["remote", "local"])
def local(request: pytest.FixtureRequest) -> bool:
    """Run the test with a remote and with a local backend."""
    return bool(request.param)


class Numbered(Talk):
    """The same conversation with sequence numbers of the test's choice."""

    def say(self, flags: str = "A", **numbers: int) -> Outcome:
        """Send a packet of the client."""
        frame = craft.frame(craft.tcp(self.fam, self.fam.client, 40000, self.fam.vip, 80, flags, **numbers))
        out = self.world.run(self.hook, frame)
        self.source = expect.source(out)
        return out

    def hear(self, flags: str = "A", **numbers: int) -> Outcome:
        """Send a packet of the backend."""
        if self.local:
            return expect.at_pod(
                self.world, expect.local_reply(self.fam, TCP, self.backend, *self.source, flags, **numbers)
            )
        frame = expect.remote_reply(self.fam, TCP, self.backend, self.source[1], flags, **numbers)
        return self.world.run(self.hook, frame, self.world.net.lb1)


@pytest.fixture
def talk(world: World, fam: Family, hook: str, *, local: bool) -> Numbered:
    """Enter a service with one backend, local or remote."""
    return Numbered(world, fam, hook, TCP, local=local)


def test_the_client_proves_that_it_got_the_syn_ack(talk: Numbered) -> None:
    """RFC 9293 §3.5: what acknowledges the backend's SYN establishes, any other number does not."""
    talk.say("S", seq=77)
    talk.hear("SA", seq=ISN, ack=78)
    for wrong in (0, 1, ISN, ISN + 2, ISN + 0x1000):
        talk.say("A", seq=78, ack=wrong & 0xFFFFFFFF)
        assert talk.state == NEW
    talk.say("P", seq=78, ack=ISN + 1)  # without ACK the number says nothing
    assert talk.state == NEW
    talk.say("A", seq=78, ack=ISN + 1)
    assert talk.state == EST


def test_a_client_cannot_answer_itself(talk: Numbered) -> None:
    """Its SYN-ACK is not the backend's, nor is a number that follows it a proof."""
    for opening in ("S", "A"):
        talk.say(opening, seq=77, ack=ISN)
        talk.say("SA", seq=77, ack=5001)
        talk.say("A", seq=78, ack=5001)
        assert talk.state == NEW


def test_a_syn_of_the_backend_answers_nothing(talk: Numbered) -> None:
    """Without ACK it opens a connection of its own: it acknowledges nothing, and begins nothing anew where one has ended."""
    talk.say("S", seq=77)
    talk.hear("S", seq=ISN)
    talk.say("A", seq=78, ack=ISN + 1)
    assert talk.state == NEW
    talk.hear("SA", seq=ISN, ack=78)
    talk.say("A", seq=78, ack=ISN + 1)
    talk.hear("R", seq=ISN + 1)
    assert talk.state == CLOSING
    talk.hear("S", seq=5000)
    assert talk.state == CLOSING


def test_data_of_the_client_proves_it_as_well(talk: Numbered) -> None:
    """The bare ACK of the handshake may be lost."""
    talk.say("S", seq=77)
    talk.hear("SA", seq=0xFFFFFFFF, ack=78)
    talk.say("PA", seq=78, ack=0)
    assert talk.state == EST


def test_a_new_syn_ack_counts(talk: Numbered) -> None:
    """The backend began anew: its last number is the right one."""
    talk.say("S", seq=77)
    talk.hear("SA", seq=ISN, ack=78)
    talk.say("S", seq=99)
    talk.hear("SA", seq=5000, ack=100)
    talk.say("A", seq=100, ack=ISN + 1)
    assert talk.state == NEW
    talk.say("A", seq=100, ack=5001)
    assert talk.state == EST


def test_a_challenge_ack_does_not_establish(talk: Numbered) -> None:
    """A backend with a half-open connection of this port answers a SYN with an ACK (RFC 5961 §4.2), and nobody has proved anything."""
    talk.say("S", seq=77)
    talk.hear("A", seq=ISN, ack=12345)
    assert talk.state == NEW
    talk.hear("SA", seq=ISN, ack=78)
    talk.say("S", seq=99)
    talk.hear("A", seq=ISN, ack=78)
    assert talk.state == NEW


@pytest.mark.parametrize("flags", ["PA", "FA"])
def test_data_of_the_backend_establishes(talk: Numbered, flags: str) -> None:
    """Data or FIN comes on a connection only: a handshake that was under way when the programs were replaced."""
    talk.say("S", seq=77)
    talk.say("A", seq=78, ack=ISN)
    assert talk.state == NEW
    talk.hear(flags, seq=ISN, ack=78)
    assert talk.state == EST


def test_acks_alone_do_not_establish(talk: Numbered) -> None:
    """One ACK or five, whatever their numbers: nobody answered."""
    for number in (ISN, 0, 0x4000, ISN + 1, ISN):
        talk.say("A", seq=78, ack=number)
        assert talk.state == MID
    talk.hear("A", seq=ISN, ack=78)
    assert talk.state == EST


def test_a_syn_after_stray_acks_begins_a_handshake(talk: Numbered) -> None:
    """An ACK before the SYN makes the rule for SYNs no weaker."""
    talk.say("A", seq=78, ack=ISN)
    talk.say("S", seq=77)
    assert talk.state == NEW
    talk.hear("A", seq=ISN, ack=12345)
    assert talk.state == NEW


@pytest.mark.parametrize("opening", ["S", "A"])
def test_refused_by_the_backend(talk: Numbered, opening: str) -> None:
    """The RST reaches the client, and the port is free at once; the client may ask again."""
    talk.say(opening, seq=77, ack=5)
    out = talk.hear("RA", seq=0, ack=78)
    assert not out.dropped
    assert expect.source(out) == (talk.fam.vip, 80)
    assert table.held_slots(talk.world, talk.fam) == 0
    assert table.only(talk.world, talk.fam).state == NEW  # its place in the table is free for any other flow
    talk.say("S", seq=500)
    talk.hear("SA", seq=ISN, ack=501)
    talk.say("A", seq=501, ack=ISN + 1)
    assert talk.state == EST
    assert table.held_slots(talk.world, talk.fam) == (0 if talk.local else 1)


def test_refused_after_its_syn_ack(talk: Numbered) -> None:
    """SYN, SYN-ACK, an ACK with a wrong number, and the backend's RST."""
    talk.say("S", seq=77)
    talk.hear("SA", seq=ISN, ack=78)
    talk.say("A", seq=78, ack=1)
    talk.hear("R", seq=1)
    assert table.held_slots(talk.world, talk.fam) == 0


def test_the_clients_rst_leaves_the_port(talk: Numbered) -> None:
    """A client resets what a backend's half-open connection answered, and tries again with the same tuple: it finds its port. Beside a connection
    of a local backend it gets one then.
    """
    talk.say("S", seq=77)
    place = talk.source
    talk.hear("A", seq=ISN, ack=12345)
    if talk.local:
        place = talk.say("S", seq=77) and talk.source
        assert place[0] == talk.fam.node
    talk.say("R", seq=12345)
    assert talk.state == NEW
    talk.say("S", seq=77)
    assert talk.source == place


def test_rst_without_a_flow(talk: Numbered) -> None:
    """It is forwarded, and neither makes a flow nor holds a port."""
    assert not talk.say("R", seq=77).dropped
    assert table.flows(talk.world, talk.fam) == []
    assert table.held_slots(talk.world, talk.fam) == 0


# --- SNAT ports ---


@pytest.fixture(scope="module")
def narrow_world() -> Iterator[World]:
    """Load programs with four SNAT ports."""
    with open_world(Settings(snat_port_min=2000, snat_port_max=2000 + PORTS - 1)) as world:
        yield world


class Crowd:
    """Flows of one client to one remote backend that has PORTS ports."""

    def __init__(self, world: World, fam: Family, hook: str, proto: int) -> None:
        """Enter a service into an empty world."""
        world.reset()
        self.world, self.fam, self.hook, self.proto = world, fam, hook, proto
        self.backend: BackendRow = world.backend(fam, fam.remote(1), 8080, proto)
        world.service(fam, fam.vip, 80, proto, [self.backend])
        self.ports: dict[int, int] = {}

    def say(self, number: int, flags: str) -> Outcome:
        """Send a packet of a flow's client."""
        frame = craft.frame(
            craft.segment(self.fam, self.proto, self.fam.client, 40000 + number, self.fam.vip, 80, flags)
        )
        out = self.world.run(self.hook, frame)
        if out.forwarded:
            self.ports[number] = expect.source(out)[1]
        return out

    def hear(self, number: int, flags: str) -> Outcome:
        """Send a packet of the backend."""
        frame = expect.remote_reply(self.fam, self.proto, self.backend, self.ports[number], flags)
        return self.world.run(self.hook, frame, self.world.net.lb1)

    def talk(self, words: list[str], *numbers: int) -> None:
        """Let each flow have the same conversation; `<` is the backend's."""
        for number in numbers:
            for word in words:
                (self.hear if word.startswith("<") else self.say)(number, word.lstrip("<"))

    def later(self, ticks: int) -> None:
        """Let time pass."""
        table.later(self.world, self.fam, ticks)

    def admits(self, number: int = 99) -> bool:
        """Whether a new flow gets a port, as one that was taken from another."""
        out = self.say(number, "S")
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
    crowd, began = Crowd(narrow_world, fam, hook, proto), time.monotonic()
    crowd.talk(words, *ALL)
    assert table.held_slots(narrow_world, fam) == PORTS
    assert not crowd.admits(98) or time.monotonic() - began > 1  # a second later they are not protected any more
    before = narrow_world.counter(Event.SNAT_RECLAIMED)[0]
    crowd.later(SLOT_UNIT)
    assert crowd.admits()
    assert narrow_world.counter(Event.SNAT_RECLAIMED)[0] == before + 1
    assert table.held_slots(narrow_world, fam) == PORTS
    back = crowd.hear(99, "SA")
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
    """A client that went on a moment ago is left in peace: the port goes to a silent one's flow."""
    crowd = Crowd(narrow_world, fam, hook, TCP)
    crowd.talk(["S", "<SA"], *ALL)
    crowd.later(SLOT_UNIT)
    for number in (0, 1, 3):
        crowd.say(number, "S")
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
    """FIN of both sides, or RST: nobody waits for the port."""
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
        assert expect.destination(crowd.hear(number, "A")) == (fam.client, 40000 + number)
        crowd.say(number, "A")
    assert crowd.ports == places
