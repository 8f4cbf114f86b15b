"""A full bucket: whose entry a new flow takes, to the very tick. The table has one bucket of four entries, and time stands still."""

from __future__ import annotations

import dataclasses

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.clock import TimedWorld, ticks_of
from tests.packet.craft import Family
from tests.packet.test_clock import caller, newcomer
from tests.packet.world import TCP, UDP

DEFAULTS = ProgramSettings()
WAYS = 4
HIGHEST_BIT = {
    4: ("198.51.100.200", 40000),
    6: ("2001:db8:100::7", 40128),
}  # clients with the highest bit of an entry's first word


def talks(timed: TimedWorld, fam: Family, hook: str, proto: int = TCP, count: int = WAYS) -> list[Caller]:
    """Return clients of a local backend that have sent nothing yet, by the ports from 40000 on."""
    first = caller(timed.world, fam, hook, proto, local=True)
    return [dataclasses.replace(first, port=40000 + n) for n in range(count)]


def held(timed: TimedWorld, fam: Family) -> set[int]:
    """Return the client ports that have an entry."""
    return {flow.port for flow in table.flows(timed.world, fam)}


def entered(timed: TimedWorld, new: Caller) -> set[int]:
    """Let a client open a connection, which gets an entry; return whose entry that was."""
    before = held(timed, new.fam)
    assert new.send("S").counted == {Reason.FWD_LOCAL: 1}
    after = held(timed, new.fam)
    assert after - before == {new.port}
    return before - after


def spilled(new: Caller) -> bool:
    """Let a client open a connection; return whether it found no entry."""
    counted = new.send("S").counted
    assert counted in ({Reason.FWD_SPILL: 1}, {Reason.FWD_LOCAL: 1})
    return bool(counted[Reason.FWD_SPILL])


def test_four_flows_have_room_beside_each_other(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Each gets an entry that was free, also while others are as old as can be; none is lost."""
    for client, port in ((fam.client, 40000), HIGHEST_BIT[fam.version]):
        still_world.reset()
        for n, talk in enumerate(talks(still_world, fam, hook)):
            assert entered(still_world, dataclasses.replace(talk, client=client, port=port + n)) == set()
            still_world.clock.pass_ticks(5)
        assert len(held(still_world, fam)) == WAYS


def test_a_place_that_was_freed_comes_before_one_that_is_held(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Wherever it lies: no half-open connection goes while an entry is free."""
    for gone in range(WAYS):
        still_world.reset()
        flows = talks(still_world, fam, hook)
        flows[gone].establish()
        flows[gone].answer("R")
        still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_closing_s) + 1)
        for talk in flows[:gone] + flows[gone + 1 :]:
            talk.send("S")
        still_world.sweep(fam)
        assert len(held(still_world, fam)) == WAYS - 1
        still_world.clock.pass_ticks(5)
        assert entered(still_world, newcomer(flows[0], 0)) == set()


def test_one_that_has_expired_stays_while_an_entry_is_free(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Its client may come back: the new flow has the only free entry."""
    for turn in range(WAYS - 1):
        still_world.reset()
        flows = talks(still_world, fam, hook, count=WAYS - 1)
        for talk in flows:
            talk.establish()
        flows[turn].answer("R")
        still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_closing_s) + 1)
        assert entered(still_world, newcomer(flows[0], 0)) == set()


def test_the_order_of_victims(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """First one that has expired, then one that is not answered, then one that was first seen in the middle; an established one never."""
    for turn in range(WAYS):  # each kind in each place
        still_world.reset()
        flows = talks(still_world, fam, hook)
        places = flows[turn:] + flows[:turn]
        middle, half_open, over, lives = places
        for talk in flows:
            if talk in (over, lives):
                talk.establish()
            else:
                talk.send("S" if talk is half_open else "A")
            if talk is over:
                talk.answer("R")
        still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_closing_s) + 1)
        assert lives.stays()
        taken = []
        for n in range(3):
            new = newcomer(lives, n)
            taken += entered(still_world, new)
            new.establish()  # or it would be a victim itself
        assert taken == [over.port, half_open.port, middle.port]
        assert spilled(newcomer(lives, 3))
        assert lives.stays()


def test_the_oldest_goes(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Of half-open connections, at any place: one with a new packet is young again."""
    for turn in range(WAYS):
        still_world.reset()
        flows = talks(still_world, fam, hook)
        for talk in flows:
            talk.send("S")
            still_world.clock.pass_ticks(1)
        order = flows[turn:] + flows[:turn]
        for talk in order:
            still_world.clock.pass_ticks(3)
            assert talk.stays("S")
        for n, talk in enumerate(order):
            new = newcomer(flows[0], n)
            assert entered(still_world, new) == {talk.port}
            new.establish()


def test_of_one_age_each_has_its_turn(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Half-open connections of one tick: four new ones take the entries of all four, not one entry four times."""
    flows = talks(still_world, fam, hook)
    for talk in flows:
        talk.send("S")
    for n in range(3):
        for new in [newcomer(flows[0], WAYS * n + way) for way in range(WAYS)]:
            entered(still_world, new)
        assert held(still_world, fam) == {50000 + WAYS * n + way for way in range(WAYS)}


def test_who_enters_proves_its_own_handshake(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The entry's last flow was answered: that does not count for the new one, whose client has sent a SYN and an ACK."""
    old, *others = talks(still_world, fam, hook)
    for talk in others:
        talk.establish()
    old.send("S")
    assert old.is_answered("SA")
    still_world.clock.pass_ticks(3)
    new = newcomer(old, 0)
    assert entered(still_world, new) == {old.port}
    new.send("A")
    assert [flow.state for flow in table.flows(still_world.world, fam) if flow.port == new.port] == [table.NEW]


ENDS = {  # protocol, packets, ticks for which the entry is safe
    "middle": (TCP, ["A"], 1),
    "closing": (TCP, ["S", "<SA", "A", "<R"], ticks_of(DEFAULTS.timeout_closing_s)),
    "established": (TCP, ["S", "<SA", "A"], ticks_of(DEFAULTS.timeout_tcp_s)),
    "udp": (UDP, ["", "<"], ticks_of(DEFAULTS.timeout_udp_s)),
}


@pytest.mark.parametrize("case", list(ENDS))
def test_an_entry_is_safe_to_its_last_tick(still_world: TimedWorld, fam: Family, hook: str, case: str) -> None:
    """Beside three established flows with packets: in the last tick of its time the new flow spills, in the next one it has the entry."""
    proto, words, safe = ENDS[case]
    old = talks(still_world, fam, hook, proto, 1)[0]
    others = [newcomer(talk, n) for n, talk in enumerate(talks(still_world, fam, hook, TCP, 3))]
    if proto == TCP:  # of one service
        old = dataclasses.replace(others[0], client="", port=40000, backend=None)
    for word in words:
        (old.answer if word.startswith("<") else old.send)(word.lstrip("<"))
    for talk in others:
        talk.establish()
    still_world.clock.pass_ticks(safe)
    for talk in others:
        assert talk.stays()
    assert spilled(newcomer(others[0], 10))
    still_world.clock.pass_ticks(1)
    assert entered(still_world, newcomer(others[0], 11)) == {40000}


def test_the_sweeper_frees_an_entry_after_its_last_tick(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Not in it: each kind of flow lives as long as in docs/operations.md."""
    cases = {**ENDS, "new": (TCP, ["S"], ticks_of(DEFAULTS.timeout_new_s))}
    cases["middle"] = (TCP, ["A"], ticks_of(DEFAULTS.timeout_new_s))
    for proto, words, last in cases.values():
        still_world.reset()
        talk = talks(still_world, fam, hook, proto, 1)[0]
        for word in words:
            (talk.answer if word.startswith("<") else talk.send)(word.lstrip("<"))
        still_world.clock.pass_ticks(last)
        assert still_world.sweep(fam)[0] == 1
        still_world.clock.pass_ticks(1)
        assert still_world.sweep(fam)[0] == 0
        assert held(still_world, fam) == set()


def test_who_loses_the_entry_loses_the_port_as_well(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """A half-open connection with a SNAT port makes room for another flow: its port is free at once."""
    world = still_world.world
    old = caller(world, fam, hook, port=81)
    old.send("S")
    still_world.clock.pass_ticks(1)
    flows = talks(still_world, fam, hook)
    for talk in flows[1:]:
        talk.establish()
    assert table.held_slots(world, fam) == 1
    entered(still_world, newcomer(flows[0], 0))
    assert table.held_slots(world, fam) == 0
    assert newcomer(old, 1).send("S").counted in ({Reason.FWD_NO_STATE: 1}, {Reason.FWD_NEW: 1})
    assert table.held_slots(world, fam) == 1


def test_a_spilled_flow_has_all_that_an_entry_has(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Its service, its age and its state: it is counted, expires, and gives its port back when it is refused."""
    world = still_world.world
    for talk in talks(still_world, fam, hook):
        talk.establish()
    remote = caller(world, fam, hook, UDP, port=53)
    before = world.service_counter(remote.service)[0]
    assert remote.send().counted == {Reason.FWD_SPILL: 1}
    assert remote.is_answered()
    assert remote.send().counted == {Reason.FWD_SPILL: 1}
    assert world.service_counter(remote.service)[0] == before + 3
    still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_udp_s))
    place = remote.place
    assert remote.stays()
    assert remote.place == place
    world.remove_service(remote.service)
    assert remote.send().counted == {Reason.REJECT_SERVICE_GONE: 1}
