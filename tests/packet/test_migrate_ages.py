"""Tables of another size, and the ages of flows: which are moved, and which must be checked for their port."""

from __future__ import annotations

import dataclasses
from contextlib import closing

from lbagent.bpf.load.program_settings import ProgramSettings
from lbagent.bpf.run.migrate import MigrationResult
from tests.packet import expect, table
from tests.packet.clock import Clock, ticks_of
from tests.packet.craft import FAMILIES
from tests.packet.harness import SMALL
from tests.packet.test_migrate import Talk, changes
from tests.packet.world import TCP, XDP

OLD = dataclasses.replace(SMALL, flow4=1 << 9, flow6=1 << 9)
NEW = dataclasses.replace(SMALL, flow4=1 << 10, flow6=1 << 10)
LONGEST = ticks_of(ProgramSettings().timeout_tcp_s)


def test_what_has_expired_is_left_behind() -> None:
    """To the very tick: a flow in the last one of its time-out is moved, one that is a tick older is not."""
    with closing(Clock()) as clock:
        for change in changes(OLD, NEW, splice=clock.splice):
            for fam in FAMILIES.values():
                change.reset()
                talk = Talk(change, fam, TCP, local=True)
                ages = {40000: 0, 40001: LONGEST - 1, 40002: LONGEST, 40003: LONGEST + 1, 40004: LONGEST + 2}
                talk.open(*ages)
                for flow in table.flows(change.world, fam):
                    ticks = flow.seen - clock.tick + ages[flow.port]
                    table.age(change.world, fam, ticks, lambda other, port=flow.port: other.port == port)
                change.begin()
                assert change.all()[fam.version] == MigrationResult(flows=3)
                change.end()
                assert {flow.port for flow in table.flows(change.world, fam)} == {40000, 40001, 40002}


def test_a_flow_that_is_still_in_the_old_table_proves_its_port() -> None:
    """No sweeper runs there, so its age is not reliable: a flow that lost its port gets one, and sends nothing from the lost one."""
    for change in changes(OLD, NEW):
        for fam in FAMILIES.values():
            change.reset()
            talk = Talk(change, fam, TCP, local=False)
            talk.open(40000)
            change.world.clear(f"lb{fam.version}_snat")
            change.begin()
            talk.send(40000)
            assert table.held_slots(change.world, fam) == 1


def test_a_port_that_is_freed_meanwhile_is_free_in_both() -> None:
    """The backend refuses a connection whose slot was not moved yet: no slot without a flow comes to the new table."""
    for change in changes(OLD, dataclasses.replace(OLD, snat4=1 << 16, snat6=1 << 16)):
        for fam in FAMILIES.values():
            change.reset()
            talk = Talk(change, fam, TCP, local=False)
            out = talk.send(40000, "S")
            backend = next(row for row in talk.backends if row.endpoint == expect.destination(out))
            change.begin()
            refusal = expect.remote_reply(fam, TCP, backend, expect.source(out)[1], "R")
            assert expect.destination(change.world.run(XDP, refusal, change.world.net.lb1)) == (fam.client, 40000)
            change.all()
            change.end()
            assert table.held_slots(change.world, fam) == 0
