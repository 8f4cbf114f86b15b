"""The stamp of a bucket with flows in the spill map: it is valid as long as the oldest of them may live, and no longer.

One bucket of four entries, all of them held, and time stands still.
"""

from __future__ import annotations

import pytest

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.maps.reasons import Reason
from tests.packet.caller import Caller
from tests.packet.clock import WRAP, Clock, TimedWorld, ticks_of
from tests.packet.craft import Family
from tests.packet.test_clock import caller
from tests.packet.test_leases import full_table

LONGEST = ticks_of(ProgramSettings().timeout_tcp_s)
STAMP = 256  # ticks a stamp counts
STAMPS_AT = {
    4: 32 + 24 + 2,
    6: 64 + 48 + 2,
}  # of a bucket's bytes: the entries of its second one, those of the spill map
BEGAN = {"at once": 0, "late in a stamp": STAMP - 1, "as ticks wrap": WRAP - Clock.START % WRAP + 3}


def spilled(timed: TimedWorld, fam: Family, hook: str) -> Caller:
    """Fill the table, and return a client of a local backend that established one connection more."""
    full_table(timed, fam, hook)
    talk = caller(timed.world, fam, hook, local=True)
    assert talk.establish().counted == {Reason.FWD_SPILL: 1}
    return talk


@pytest.mark.parametrize("began", list(BEGAN))
def test_a_spilled_flow_is_found_to_its_last_tick(still_world: TimedWorld, fam: Family, hook: str, began: str) -> None:
    """After the longest time-out without a packet it continues to its backend, although its service has another one by now."""
    still_world.clock.pass_ticks(BEGAN[began])
    talk = spilled(still_world, fam, hook)
    other = still_world.world.backend(fam, fam.local(2), 8080, local=True)
    still_world.world.slot(talk.service, 1, target=other.id)
    assert talk.stays()
    still_world.clock.pass_ticks(LONGEST)
    assert talk.stays()


def test_a_flow_spills_once_more(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Hours after the first time, when what it left in the spill map is not looked for any more."""
    talk = spilled(still_world, fam, hook)
    still_world.clock.pass_ticks(LONGEST + 4 * STAMP)
    full_table(still_world, fam, hook)
    assert talk.establish().counted == {Reason.FWD_SPILL: 1}


def test_stamps_are_where_earlier_programs_left_them(still_world: TimedWorld, fam: Family, hook: str) -> None:
    """Programs of another version meet them after an upgrade: bytes of the bucket's second entry, in units of 256 ticks."""
    spilled(still_world, fam, hook)
    with still_world.world.maps.window(f"lb{fam.version}_flow", STAMPS_AT[fam.version], 2) as view:
        assert bytes(view) == bytes((0, Clock.START // STAMP % 256))
