"""What establishes a TCP flow, and what does not: the numbers of a handshake, and what they prove."""

from __future__ import annotations

import pytest

from tests.packet import craft, expect, table
from tests.packet.craft import Family
from tests.packet.table import CLOSING, EST, MID, NEW
from tests.packet.test_state import Talk
from tests.packet.world import TCP, Outcome, World

ISN = 0x89ABCDEF  # of the backend


@pytest.fixture(params=[False, True], ids=["remote", "local"])
def local(request: pytest.FixtureRequest) -> bool:
    """Run the test with a remote and with a local backend."""
    return bool(request.param)


class Numbered(Talk):
    """The same conversation with sequence numbers of the test's choice."""

    def from_client(self, flags: str = "A", **numbers: int) -> Outcome:
        """Send a packet of the client."""
        frame = craft.frame(craft.tcp(self.fam, self.fam.client, 40000, self.fam.vip, 80, flags, **numbers))
        out = self.world.run(self.hook, frame)
        self.source = expect.source(out)
        return out

    def from_backend(self, flags: str = "A", **numbers: int) -> Outcome:
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
    talk.from_client("S", seq=77)
    talk.from_backend("SA", seq=ISN, ack=78)
    for wrong in (0, 1, ISN, ISN + 2, ISN + 0x1000):
        talk.from_client("A", seq=78, ack=wrong & 0xFFFFFFFF)
        assert talk.state == NEW
    talk.from_client("P", seq=78, ack=ISN + 1)  # without ACK the number has no meaning
    assert talk.state == NEW
    talk.from_client("A", seq=78, ack=ISN + 1)
    assert talk.state == EST


def test_a_client_cannot_answer_itself(talk: Numbered) -> None:
    """Its SYN-ACK is not the backend's, nor is a number that follows it a proof."""
    for opening in ("S", "A"):
        talk.from_client(opening, seq=77, ack=ISN)
        talk.from_client("SA", seq=77, ack=5001)
        talk.from_client("A", seq=78, ack=5001)
        assert talk.state == NEW


def test_a_syn_of_the_backend_answers_nothing(talk: Numbered) -> None:
    """Without ACK it opens a connection of its own: it acknowledges nothing, and restarts nothing after an end."""
    talk.from_client("S", seq=77)
    talk.from_backend("S", seq=ISN)
    talk.from_client("A", seq=78, ack=ISN + 1)
    assert talk.state == NEW
    talk.from_backend("SA", seq=ISN, ack=78)
    talk.from_client("A", seq=78, ack=ISN + 1)
    talk.from_backend("R", seq=ISN + 1)
    assert talk.state == CLOSING
    talk.from_backend("S", seq=5000)
    assert talk.state == CLOSING


def test_data_of_the_client_proves_it_as_well(talk: Numbered) -> None:
    """The bare ACK of the handshake may be lost."""
    talk.from_client("S", seq=77)
    talk.from_backend("SA", seq=0xFFFFFFFF, ack=78)
    talk.from_client("PA", seq=78, ack=0)
    assert talk.state == EST


def test_a_new_syn_ack_counts(talk: Numbered) -> None:
    """The backend restarted the handshake: its last number is the right one."""
    talk.from_client("S", seq=77)
    talk.from_backend("SA", seq=ISN, ack=78)
    talk.from_client("S", seq=99)
    talk.from_backend("SA", seq=5000, ack=100)
    talk.from_client("A", seq=100, ack=ISN + 1)
    assert talk.state == NEW
    talk.from_client("A", seq=100, ack=5001)
    assert talk.state == EST


def test_a_challenge_ack_does_not_establish(talk: Numbered) -> None:
    """A backend with a half-open connection of this port answers a SYN with an ACK (RFC 5961 §4.2), and neither side has proved anything."""
    talk.from_client("S", seq=77)
    talk.from_backend("A", seq=ISN, ack=12345)
    assert talk.state == NEW
    talk.from_backend("SA", seq=ISN, ack=78)
    talk.from_client("S", seq=99)
    talk.from_backend("A", seq=ISN, ack=78)
    assert talk.state == NEW


@pytest.mark.parametrize("flags", ["PA", "FA"])
def test_data_of_the_backend_establishes(talk: Numbered, flags: str) -> None:
    """Data or FIN comes on a connection only: a handshake that was under way when the programs were replaced."""
    talk.from_client("S", seq=77)
    talk.from_client("A", seq=78, ack=ISN)
    assert talk.state == NEW
    talk.from_backend(flags, seq=ISN, ack=78)
    assert talk.state == EST


def test_acks_alone_do_not_establish(talk: Numbered) -> None:
    """One ACK or five, with any numbers: the backend did not answer."""
    for number in (ISN, 0, 0x4000, ISN + 1, ISN):
        talk.from_client("A", seq=78, ack=number)
        assert talk.state == MID
    talk.from_backend("A", seq=ISN, ack=78)
    assert talk.state == EST


def test_a_syn_after_stray_acks_begins_a_handshake(talk: Numbered) -> None:
    """An ACK before the SYN makes the rule for SYNs no weaker."""
    talk.from_client("A", seq=78, ack=ISN)
    talk.from_client("S", seq=77)
    assert talk.state == NEW
    talk.from_backend("A", seq=ISN, ack=12345)
    assert talk.state == NEW


@pytest.mark.parametrize("opening", ["S", "A"])
def test_refused_by_the_backend(talk: Numbered, opening: str) -> None:
    """The RST reaches the client, and the port is free at once; the client may try again."""
    talk.from_client(opening, seq=77, ack=5)
    out = talk.from_backend("RA", seq=0, ack=78)
    assert not out.dropped
    assert expect.source(out) == (talk.fam.vip, 80)
    assert table.held_slots(talk.world, talk.fam) == 0
    assert table.only(talk.world, talk.fam).state == NEW  # its place in the table is free for any other flow
    talk.from_client("S", seq=500)
    talk.from_backend("SA", seq=ISN, ack=501)
    talk.from_client("A", seq=501, ack=ISN + 1)
    assert talk.state == EST
    assert table.held_slots(talk.world, talk.fam) == (0 if talk.local else 1)


def test_refused_after_its_syn_ack(talk: Numbered) -> None:
    """SYN, SYN-ACK, an ACK with a wrong number, and the backend's RST."""
    talk.from_client("S", seq=77)
    talk.from_backend("SA", seq=ISN, ack=78)
    talk.from_client("A", seq=78, ack=1)
    talk.from_backend("R", seq=1)
    assert table.held_slots(talk.world, talk.fam) == 0


def test_the_clients_rst_leaves_the_port(talk: Numbered) -> None:
    """A client resets what a backend's half-open connection answered, and tries again with the same tuple: it finds its port. Beside a connection
    of a local backend it gets one then.
    """
    talk.from_client("S", seq=77)
    place = talk.source
    talk.from_backend("A", seq=ISN, ack=12345)
    if talk.local:
        place = talk.from_client("S", seq=77) and talk.source
        assert place[0] == talk.fam.node
    talk.from_client("R", seq=12345)
    assert talk.state == NEW
    talk.from_client("S", seq=77)
    assert talk.source == place


def test_rst_without_a_flow(talk: Numbered) -> None:
    """It is forwarded, and neither makes a flow nor holds a port."""
    assert not talk.from_client("R", seq=77).dropped
    assert table.flows(talk.world, talk.fam) == []
    assert table.held_slots(talk.world, talk.fam) == 0
