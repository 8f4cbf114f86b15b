"""The list of the programs behind the entry points."""

from __future__ import annotations

import pytest

from lbagent.maps.tail_calls import CALL_SLOTS, FAMILIES, TAIL_CALLS, call_slot, hook_and_slot, program_names


def test_every_program_has_a_slot_of_its_own():
    slots = [call_slot(call.name, family) for call in TAIL_CALLS for family in FAMILIES]
    assert len({*slots}) == len(slots)
    assert all(0 < slot < CALL_SLOTS for slot in slots)


def test_ipv6_is_the_slot_after_ipv4():
    assert all(call_slot(call.name, 6) == call_slot(call.name, 4) + 1 for call in TAIL_CALLS)


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_names_say_hook_and_slot(hook):
    for family in FAMILIES:
        placed = {hook_and_slot(name) for name in program_names(hook, family)} - {None}
        assert placed == {(hook, call_slot(call.name, family)) for call in TAIL_CALLS}


def test_other_programs_have_no_slot():
    assert [hook_and_slot(name) for name in ("xdp", "sweep4", "call_xdp_x_reply4", "call_xdp_3_")] == [None] * 4
