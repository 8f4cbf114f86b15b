"""A RST may be forged: a flow that one has closed is established again when both sides send data after it, and only then."""

from __future__ import annotations

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import craft, expect, table
from tests.packet.clock import TimedWorld, ticks_of
from tests.packet.craft import Family
from tests.packet.table import CLOSING, EST, NEW, SLOT_UNIT
from tests.packet.test_clock import caller
from tests.packet.test_direct_tcp import Scene, one
from tests.packet.test_established import ALL, Crowd, narrow_world
from tests.packet.test_state import Talk, sweep
from tests.packet.test_victims import WAYS, talks
from tests.packet.world import TCP, UDP, World

__all__ = ["narrow_world", "one"]  # fixtures

DEFAULTS = ProgramSettings()
BOTH_FIN = 3
ENDS = pytest.mark.parametrize("local", [False, True], ids=["remote", "local"])


def play(talk: Talk, words: str) -> Talk:
    """Let a conversation take place; `<` is the backend's."""
    for word in words.split():
        (talk.from_backend if word.startswith("<") else talk.from_client)(word.lstrip("<"))
    return talk


def opened(world: World, fam: Family, hook: str, *, local: bool) -> Talk:
    """Establish a flow."""
    talk = play(Talk(world, fam, hook, TCP, local=local), "S <SA A")
    assert talk.state == EST
    return talk


LIVING = {  # what follows the handshake, and which FINs are seen then
    "client first": ("R A <A", 0),
    "backend first": ("R <A A", 0),
    "data": ("R PA <PA", 0),
    "of the backend": ("<R A <A", 0),
    "with an ACK": ("RA A <A", 0),
    "twice": ("R A <A R <A A", 0),
    "a challenge": ("R <A <A A", 0),
    "client half closed": ("FA <A R <PA A", 1),
    "backend half closed": ("<FA A R PA <A", 2),
    "half closed after it": ("R FA <PA A", 1),
}


@ENDS
@pytest.mark.parametrize("case", list(LIVING))
def test_data_of_both_sides_after_it(world: World, fam: Family, hook: str, case: str, *, local: bool) -> None:
    """The peer of a real RST would answer each of these segments with another RST."""
    words, fin = LIVING[case]
    talk = play(opened(world, fam, hook, local=local), words)
    flow = table.only(world, fam)
    assert (flow.state, flow.fin) == (EST, fin)
    play(talk, "FA <FA A <A")
    flow = table.only(world, fam)
    assert (flow.state, flow.fin) == (CLOSING, BOTH_FIN)


ENDED = {
    "nothing": "R",
    "the client's data": "R PA PA A",
    "the backend's data": "R <PA <PA <A",
    "the last RST counts": "R A R <A",
    "the backend's RST counts": "R <A <R A",
    "a RST is no data": "R <A R <A R",
    "a FIN is no data": "R FA <A",
    "a FIN of the backend is no data": "R A <FA",
    "a SYN-ACK is no data": "R A <SA",
    "both have closed": "FA <FA A <A A <A",
    "both have closed, and RST": "FA <FA A R A <A A <A",
    "both close after it": "R FA <FA A <A",
}


@ENDS
@pytest.mark.parametrize("case", list(ENDED))
def test_what_leaves_it_closed(world: World, fam: Family, hook: str, case: str, *, local: bool) -> None:
    """A late segment of one side, FIN of both: the entry ends after the time-out of closing flows."""
    play(opened(world, fam, hook, local=local), ENDED[case])
    assert table.only(world, fam).state == CLOSING


@ENDS
def test_a_syn_begins_a_handshake_as_before(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """Bits set after the RST belong to the connection before."""
    talk = opened(world, fam, hook, local=local)
    for words, state in (("R A S", NEW), ("<SA A", EST), ("R", CLOSING), ("<A", CLOSING), ("A", EST)):
        assert play(talk, words).state == state


@ENDS
def test_the_time_out_is_that_of_its_state(still_world: TimedWorld, fam: Family, hook: str, *, local: bool) -> None:
    """Closed it ends as before, to the tick; established again it lives as long as any established flow, with its port."""
    closing, est = ticks_of(DEFAULTS.timeout_closing_s), ticks_of(DEFAULTS.timeout_tcp_s)
    for words, timeout in (("R", closing), ("R A", closing), ("R A <A", est)):
        still_world.reset()
        talk = caller(still_world.world, fam, hook, TCP, local=local)
        talk.establish()
        for word in words.split():
            (talk.answer if word.startswith("<") else talk.send)(word.lstrip("<"))
        still_world.clock.pass_ticks(timeout)
        assert still_world.sweep(fam)[0] == 1, words
        assert table.held_slots(still_world.world, fam) == (0 if local else 1)
        still_world.clock.pass_ticks(1)
        assert still_world.sweep(fam)[0] == 0, words
        assert table.held_slots(still_world.world, fam) == 0


def test_it_has_its_port_for_good_again(narrow_world: World, fam: Family, hook: str) -> None:
    """Between the RST and the data a new flow may take it, as of any flow that closes."""
    crowd = Crowd(narrow_world, fam, hook, TCP)
    crowd.talk(["S", "<SA", "A", "R", "PA", "<PA"], *ALL)
    places = dict(crowd.ports)
    for _ in range(3):
        crowd.later(240 * SLOT_UNIT)
        assert not crowd.admits()
    crowd.talk(["A", "<A"], *ALL)
    assert crowd.ports == places
    crowd.talk(["R", "A"], 2)
    crowd.later(SLOT_UNIT)
    assert crowd.admits()
    assert crowd.ports[99] == places[2]


@ENDS
def test_no_flow_takes_its_entry(still_world: TimedWorld, fam: Family, hook: str, *, local: bool) -> None:
    """In a full bucket, long after closing flows have given way."""
    talks_ = talks(still_world, fam, hook)
    for talk in talks_:
        talk.establish()
        for flags in ("R", "A"):
            talk.send(flags)
        talk.answer("A")
    still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_closing_s) + 1)
    before = {flow.port for flow in table.flows(still_world.world, fam)}
    assert len(before) == WAYS
    assert all(talk.stays() for talk in talks_)
    assert {flow.port for flow in table.flows(still_world.world, fam)} == before


def test_the_way_to_the_client_is_learned_beside_it(world: World, fam: Family, hook: str) -> None:
    """Of a flow whose backend is on this node, before the RST or after it."""
    talk = opened(world, fam, hook, local=True)
    learned = world.nexthop(world.net.lb0, craft.ROUTER_MAC, craft.NODE_MAC)
    assert _nexthop(world, fam) == 0
    play(talk, "R <A")
    assert _nexthop(world, fam) == learned | 0x2000
    play(talk, "A")
    assert (talk.state, _nexthop(world, fam)) == (EST, learned)
    for words, marks in (("R", 0), ("A", 0x1000), ("R", 0), ("<A", 0x2000), ("<A", 0x2000)):
        play(talk, words)
        assert _nexthop(world, fam) == learned | marks


def _nexthop(world: World, fam: Family) -> int:
    """Return the upper 16 bits of the seen word of the only flow."""
    words, seen = (4, 3) if fam.version == 4 else (8, 6)
    at = (table.only(world, fam).position * words + seen) * 8 + 6
    with world.maps.window(f"lb{fam.version}_flow", at, 2) as view:
        return int.from_bytes(view, "little")


@ENDS
def test_what_ended_with_its_backend_stays_ended(world: World, fam: Family, hook: str, *, local: bool) -> None:
    """It was answered with RST: further data of the backend does not establish the flow again when the frontend is served again."""
    talk = opened(world, fam, hook, local=local)
    source = talk.source
    world.remove_service(talk.service)
    assert talk.from_client("FA").counted == {Reason.REJECT_SERVICE_GONE: 1}
    world.service(fam, fam.vip, 80, TCP, [talk.backend], ident=talk.service.id)
    talk.source = source
    play(talk, "<PA A <PA")
    flow = table.only(world, fam)
    assert (flow.state, flow.fin) == (CLOSING, BOTH_FIN)


def test_a_direct_connection(one: Scene) -> None:
    """Its flow has the pod itself as its frontend, and closes and lives on by the same rule."""
    world, fam, direct = one.caller.world, one.pod.family, one.direct
    direct.open()
    source = direct.source

    def state() -> int:
        (flow,) = [flow for flow in table.flows(world, fam) if flow.snat_port]
        return flow.state

    for flags, wanted in (("R", CLOSING), ("PA", CLOSING)):
        direct.send(flags)
        assert state() == wanted
    assert direct.is_answered("PA")
    assert state() == EST
    assert direct.source == source
    one.both_are_right()


def test_a_datagram_resets_nothing(world: World, fam: Family, hook: str) -> None:
    """UDP has no such bits: its handshake word and the bit of a conversation that lasts are what they were."""
    talk = Talk(world, fam, hook, UDP, local=False)
    for _ in range(2):
        talk.from_client("")
        talk.from_backend("")
    flow = table.only(world, fam)
    table.earlier_reply(world, fam, 4)
    talk.from_client("")
    after = table.only(world, fam)
    assert (flow.state, flow.fin, after.state, after.fin) == (EST, 0, EST, 1)


def test_it_is_counted_among_the_live_ones(world: World, fam: Family, hook: str) -> None:
    """By the sweeper, before and after."""
    talk = opened(world, fam, hook, local=False)
    for words in ("R", "A", "<A"):
        play(talk, words)
        assert sweep(world, fam) == 1
    assert expect.source(talk.from_client("A"))[1] == table.only(world, fam).snat_port
