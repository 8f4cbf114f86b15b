"""Leases of SNAT ports to the very tick: when a port is free, and when it is taken from its flow.

One bucket of four entries, one SNAT port, and time stands still. A port whose lease is over is free; one that is taken from a flow
counts as SNAT_RECLAIMED.
"""

from __future__ import annotations

import dataclasses

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Event, Reason
from tests.packet import table
from tests.packet.caller import Caller
from tests.packet.clock import UNIT, TimedWorld, ticks_of
from tests.packet.craft import Family
from tests.packet.test_clock import caller, newcomer
from tests.packet.world import TCP, UDP

DEFAULTS = ProgramSettings()
MARGIN = 528  # ticks that a full lease is longer than the longest time-out (docs/datapath.md, "Ages that wrap")
LATE = 3 * UNIT  # ticks after its time-out a short lease is over at the latest: it counts units
EXHAUSTED = {Reason.DROP_SNAT_EXHAUSTED: 1}


def converse(talk: Caller, *words: str) -> Caller:
    """Let a flow have this conversation; `<` is the backend's."""
    for word in words:
        (talk.answer if word.startswith("<") else talk.send)(word.lstrip("<"))
    return talk


def reclaimed(timed: TimedWorld, new: Caller) -> bool:
    """Let a new flow have the port; return whether it was taken from another one."""
    before = timed.world.counter(Event.SNAT_RECLAIMED)[0]
    out = new.send("S")
    assert out.counted == {Reason.FWD_NEW: 1}, out
    return timed.world.counter(Event.SNAT_RECLAIMED)[0] > before


SHORT = {  # protocol, packets, seconds
    "new": (TCP, ["S"], DEFAULTS.timeout_new_s),
    "middle": (TCP, ["A"], DEFAULTS.timeout_new_s),
    "closing": (TCP, ["S", "<SA", "A", "<R"], DEFAULTS.timeout_closing_s),
    "udp-new": (UDP, [""], DEFAULTS.timeout_new_s),
    "udp": (UDP, ["", "<"], DEFAULTS.timeout_udp_s),
}


@pytest.mark.parametrize("case", list(SHORT))
def test_a_short_lease_ends_with_the_time_out(still_world: TimedWorld, fam: Family, hook: str, case: str) -> None:
    """Up to the time-out the port has to be taken from the flow, and soon after it is free, also without a sweep."""
    proto, words, seconds = SHORT[case]
    for more, taken in ((0, True), (LATE, False)):
        still_world.reset()
        held = converse(caller(still_world.world, fam, hook, proto), *words)
        still_world.clock.pass_ticks(ticks_of(seconds) + more)
        assert reclaimed(still_world, newcomer(held, 0)) is taken


def test_a_full_lease(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """528 ticks longer than the longest time-out, in whole units; then the port is another one's, though the entry is there."""
    units = ticks_of(DEFAULTS.timeout_tcp_s) // UNIT + MARGIN // UNIT
    held = caller(still_world.world, fam, hook)
    held.establish()
    still_world.clock.pass_ticks(units * UNIT)
    assert newcomer(held, 0).send("S").counted == EXHAUSTED
    still_world.clock.pass_ticks(UNIT)
    assert not reclaimed(still_world, newcomer(held, 0))


def test_the_lease_of_an_established_flow_is_renewed_every_256_ticks(
    still_world: TimedWorld, fam: Family, hook: str
) -> None:
    """A flow with packets: the stamp of its slot is renewed after each multiple of 256, and not in between."""
    clock = still_world.clock
    talk = caller(still_world.world, fam, hook)
    talk.establish()
    began = table.slot_stamp(still_world.world, fam)
    for passed, stamp in ((255, 0), (1, 32), (7, 32), (200, 32), (48, 32), (1, 64), (256, 96)):
        clock.pass_ticks(passed)
        assert talk.stays()
        assert (table.slot_stamp(still_world.world, fam) - began) & 0xFFF == stamp


def test_a_short_lease_is_renewed_every_unit(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """A SYN that is sent again, and a datagram without an answer: the stamp goes with them, by units of eight ticks."""
    clock = still_world.clock
    for proto in (TCP, UDP):
        still_world.reset()
        talk = converse(caller(still_world.world, fam, hook, proto), "S")
        began = table.slot_stamp(still_world.world, fam)
        for passed, stamp in ((7, 0), (1, 1), (3, 1), (5, 2), (8, 3)):
            clock.pass_ticks(passed)
            assert talk.stays("S")
            assert (table.slot_stamp(still_world.world, fam) - began) & 0xFFF == stamp


# --- taken from a flow ---


def test_three_ticks_of_silence(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Two are not enough: a handshake has two seconds at least."""
    held = converse(caller(still_world.world, fam, hook), "S")
    still_world.clock.pass_ticks(2)
    assert newcomer(held, 0).send("S").counted == EXHAUSTED
    still_world.clock.pass_ticks(1)
    assert reclaimed(still_world, newcomer(held, 1))


def test_a_client_that_was_heard_in_the_tick_that_follows(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Another CPU's clock may be a tick ahead: that is no age of 18 hours."""
    held = converse(caller(still_world.world, fam, hook), "S")
    table.age(still_world.world, fam, -1)
    assert newcomer(held, 0).send("S").counted == EXHAUSTED
    assert held.stays("S")


def test_when_an_udp_conversation_lasts(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """A datagram one tick after the first reply shows nothing, one two ticks after it does: then 16 ticks of silence are needed."""
    for last, lasts in ((1, False), (2, True)):
        for who in ("", "<"):
            still_world.reset()
            held = converse(caller(still_world.world, fam, hook, UDP), "", "<")
            still_world.clock.pass_ticks(last)
            converse(held, who)
            still_world.clock.pass_ticks(3)
            new = newcomer(held, 0)
            if not lasts:
                assert reclaimed(still_world, new), (last, who)
                continue
            assert new.send("S").counted == EXHAUSTED, (last, who)
            still_world.clock.pass_ticks(15 - 3)
            assert new.send("S").counted == EXHAUSTED, (last, who)
            still_world.clock.pass_ticks(1)
            assert reclaimed(still_world, new), (last, who)


def test_a_tcp_flow_that_is_established_is_never_asked(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """However silent: only its lease's end frees the port."""
    held = caller(still_world.world, fam, hook)
    held.establish()
    for _ in range(5):
        still_world.clock.pass_ticks(1000)
        assert newcomer(held, 0).send("S").counted == EXHAUSTED


def full_table(timed: TimedWorld, fam: Family, hook: str) -> None:
    """Let four established flows to a local backend hold all entries."""
    local = caller(timed.world, fam, hook, local=True, port=81)
    for n in range(4):
        dataclasses.replace(local, port=41000 + n).establish()


def test_a_handshake_without_an_entry(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """No room in the table: its slot alone is the flow. It is left in peace for two units, then the port is another one's."""
    full_table(still_world, fam, hook)
    held = caller(still_world.world, fam, hook)
    assert held.send("S").counted == {Reason.FWD_NO_STATE: 1}
    assert held.is_answered("SA")
    still_world.clock.pass_ticks(2 * UNIT - 1)
    assert newcomer(held, 0).send("S").counted == EXHAUSTED
    still_world.clock.pass_ticks(1)
    before = still_world.world.counter(Event.SNAT_RECLAIMED)[0]
    assert newcomer(held, 1).send("S").counted == {Reason.FWD_NO_STATE: 1}
    assert still_world.world.counter(Event.SNAT_RECLAIMED)[0] == before + 1


def test_the_sweeper_frees_a_slot_without_an_entry(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Of a handshake that had no room: after its lease, and not before. The other slots of the table are not this sweep's."""
    world = still_world.world
    full_table(still_world, fam, hook)
    for n in range(200):
        row = world.backend(fam, fam.remote(10 + n), 8080)  # another backend, so another slot
        talk = Caller(world, world.service(fam, fam.vip, 1000 + n, TCP, [row]), hook=hook)
        assert talk.send("S").counted == {Reason.FWD_NO_STATE: 1}
        (index,) = table.held_slot_indexes(world, fam)
        if index < 4:
            break
        assert talk.answer("R").forwarded  # refused: the port is free again
        assert table.held_slots(world, fam) == 0
    else:
        pytest.fail("no backend has its slot among the first four")
    still_world.clock.pass_ticks(ticks_of(DEFAULTS.timeout_new_s))
    still_world.sweep(fam)
    assert table.held_slots(world, fam) == 1
    still_world.clock.pass_ticks(LATE)
    still_world.sweep(fam)
    assert table.held_slots(world, fam) == 0


def test_a_handshake_without_an_entry_that_is_refused(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The backend's RST reaches the client and frees the port; its other segments do not."""
    full_table(still_world, fam, hook)
    held = caller(still_world.world, fam, hook)
    held.send("S")
    assert held.is_answered("SA")
    assert table.held_slots(still_world.world, fam) == 1
    assert held.is_answered("R")
    assert table.held_slots(still_world.world, fam) == 0


def test_the_port_of_a_frontend_that_is_gone(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """The owner is unknown, so it may be taken at once."""
    world = still_world.world
    held = converse(caller(world, fam, hook), "S")
    other = world.service(fam, fam.vip2, 80, TCP, held.service.backends)
    world.remove_service(held.service)
    assert reclaimed(still_world, Caller(world, other, client=fam.client2, hook=hook))


def test_a_flow_that_lost_its_port_counts_for_no_backend(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """It lives, as an entry, until its time-out; a backend that waits for its last flow does not wait for it."""
    world = still_world.world
    held = converse(caller(world, fam, hook), "S")
    assert held.backend is not None
    still_world.clock.pass_ticks(3)
    assert reclaimed(still_world, newcomer(held, 0))
    world.clear("lb_live")
    assert still_world.sweep(fam)[0] == 2
    with world.maps.window("lb_live", held.backend.id * 4, 4) as view:
        assert int.from_bytes(view, "little") == 1
    held.send("S")  # it has no port, and finds none
    assert held.went is None


def test_replies_of_an_opening_flow_do_not_renew_its_lease(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """A backend that sends its SYN-ACK again and again keeps no port for a client that is silent."""
    held = converse(caller(still_world.world, fam, hook), "S")
    began = table.slot_stamp(still_world.world, fam)
    for _ in range(4):
        still_world.clock.pass_ticks(UNIT)
        assert held.is_answered("SA")
    assert table.slot_stamp(still_world.world, fam) == began
    assert reclaimed(still_world, newcomer(held, 0))


def test_replies_of_an_established_flow_renew_its_lease(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Each unit once: a download's port stays its own."""
    held = caller(still_world.world, fam, hook)
    held.establish()
    began = table.slot_stamp(still_world.world, fam)
    for n in range(1, 5):
        still_world.clock.pass_ticks(UNIT)
        assert held.is_answered()
        assert (table.slot_stamp(still_world.world, fam) - began) & 0xFFF == n
