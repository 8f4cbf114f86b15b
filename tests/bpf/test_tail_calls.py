"""The list of the programs behind the entry points."""

from __future__ import annotations

from lbagent.bpf.compiler import builder
from lbagent.bpf.hooks import CONTEXTS
from lbagent.bpf.load.loader import Generation, call_slots, lacking
from lbagent.bpf.tail_calls import AGENT_RUNS, COMMAND_RUN_PROGRAMS, TAIL_CALLS, call_slot, program_functions
from lbagent.maps import layout
from lbagent.model.family import Family

PACKET_ENTRIES = {"xdp", "tc_ingress", "tc_egress", "tc_after_xdp"}
SOCKET_ENTRIES = {f"{call}{version}" for call in ("connect", "sendmsg", "recvmsg", "getpeername") for version in (4, 6)}


def test_every_program_has_a_slot_of_its_own():
    slots = [call_slot(call.name, family) for call in TAIL_CALLS for family in Family]
    assert len({*slots}) == len(slots)
    assert all(0 < slot < layout.CALLS for slot in slots)


def test_ipv6_is_the_slot_after_ipv4():
    assert all(call_slot(call.name, Family.IPV6) == call_slot(call.name, Family.IPV4) + 1 for call in TAIL_CALLS)


def test_the_build_has_every_program_of_the_list_where_the_loader_puts_it():
    programs = builder.ensure_artifact().programs
    listed = {name for hook in AGENT_RUNS for family in Family for name in program_functions(hook, family)}
    assert {*programs} == listed | PACKET_ENTRIES | SOCKET_ENTRIES
    placed = call_slots(programs)
    assert len(placed) == len(AGENT_RUNS) * len(Family) * len(TAIL_CALLS)
    assert {*placed.values()} == {name for name in listed if name.startswith("call_")}
    assert all(f"_{slot}_" in name for (_, slot), name in placed.items())


def test_the_agent_loads_no_program_of_a_command():
    artifact = builder.ensure_artifact()
    assert {"flow_delete4", "flow_delete6"} == COMMAND_RUN_PROGRAMS <= {*artifact.programs}
    wanted = lacking(artifact, CONTEXTS, Generation())
    assert {*artifact.programs} - {*wanted} == COMMAND_RUN_PROGRAMS
    assert lacking(artifact, CONTEXTS, Generation(programs=dict.fromkeys(wanted, 0))) == {}
