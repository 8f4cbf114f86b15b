"""Self-test packets: new flows to frontends in force, and whether the dry programs find the frontend over the maps that serve.

A packet proves that the programs of a hook parse, filter, look up and select. Whether its backend can be reached is not asked: a
dead neighbour, full SNAT ports or a refusing policy have conditions of their own, and are no fault of the programs.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lbagent.bpf.run.packet_run import Tc, Xdp
from lbagent.maps.reasons import Reason, label
from lbagent.maps.trace_layout import TRACE_HIT, TRACE_MISS, TraceStep
from lbagent.model.address import L4Type, parse_ip
from lbagent.model.family import Family
from lbagent.targets.bpf import packet_frame

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lbagent.bpf.run.dry_programs import DryPrograms, DryResult
    from lbagent.model.address import L3n4Addr
    from lbagent.model.service import SVC
    from lbagent.model.state import State
    from lbagent.net.snapshot import NodeNetwork

PROGRAMS = {
    "xdp": "xdp",
    "xdp-generic": "xdp",
    "tc_ingress": "tc_ingress",
}  # the program of a hook for arriving packets
TRIES = 3  # frontends of a family: one may go at this moment
_CLIENT = {Family.IPV4: parse_ip("192.0.2.1"), Family.IPV6: parse_ip("2001:db8::1")}  # RFC 5737, RFC 3849: no host
_STRANGER = {Family.IPV4: parse_ip("198.51.100.1"), Family.IPV6: parse_ip("2001:db8:ffff::1")}
_CLIENT_PORT = 9
_PEER_MAC = bytes.fromhex("02000000feed")
_DEFECTS = (Reason.DROP_INTERNAL, Reason.DROP_MISSING_BACKEND)
_PROTOCOL = {L4Type.TCP: packet_frame.TCP, L4Type.UDP: packet_frame.UDP}


class Place(NamedTuple):
    """A device with a program for arriving packets."""

    program: str
    device: str
    ifindex: int
    mac: bytes


def places(hooks: Mapping[str, Collection[str]], network: NodeNetwork) -> list[Place]:
    """Return one device for each program that takes arriving packets; `hooks`: words of hooks by device."""
    found: dict[str, Place] = {}
    for name, words in sorted(hooks.items()):
        link = network.by_name(name)
        for word in words if link else ():
            program = PROGRAMS.get(word)
            if program and link and program not in found:
                found[program] = Place(program, name, link.index, link.mac or bytes(6))
    return list(found.values())


def candidates(state: State, family: Family, failing: Collection[L3n4Addr]) -> list[SVC]:
    """Return some frontends to which a new flow gets a backend; those that clients outside reach come first."""

    def fits(svc: SVC) -> bool:
        return bool(
            svc.id and not svc.wildcard and svc.selectable and svc.frontend.family is family
            and not svc.frontend.last_port  # another frontend may have one of its ports
            and svc.frontend.protocol in _PROTOCOL and svc.frontend not in failing
        )  # fmt: skip

    found = list(islice(filter(fits, state.services), 64))
    return sorted(found, key=lambda svc: svc.check_source_range or bool(svc.source_ranges))[:TRIES]


def faults(programs: DryPrograms, at: Collection[Place], state: State, failing: Collection[L3n4Addr]) -> Iterator[str]:
    """Run the packets and yield what is wrong, a sentence each. Raises KernelError."""
    for place in at:
        for family in Family:
            rows = candidates(state, family, failing)
            if not rows:
                if fault := _stranger_fault(programs, place, family):
                    yield fault
                continue
            tried = [_frontend_fault(programs, place, svc) for svc in rows]
            if all(tried):
                yield tried[0]


def _frame(place: Place, source: bytes, to: tuple[int, bytes, int]) -> bytes:
    protocol, address, port = to
    ends = packet_frame.Tuple(protocol, source, _CLIENT_PORT, address, port)
    return packet_frame.make_frame(ends, place.mac + _PEER_MAC)


def _frontend_fault(programs: DryPrograms, place: Place, svc: SVC) -> str:
    """Return why the programs do not know the frontend, '' if they do."""
    to = svc.frontend
    frame = _frame(place, _CLIENT[to.family], (_PROTOCOL[to.protocol], to.address, to.port))
    run = programs.run(place.program, frame, place.ifindex)
    what = f"a packet to {to.with_protocol()} ({svc.name}) through {place.program} of {place.device}"
    if defect := next((step.a for step in run.trace if step.step is TraceStep.REASON and step.a in _DEFECTS), 0):
        return f"{what} is dropped: {label(Reason(defect))}"
    return "" if _finds(run, svc.id) else f"{what} does not meet its frontend"


def _finds(run: DryResult, service: int) -> bool:
    """Return whether the programs found the frontend, or a flow of it."""
    for step in run.trace:
        if step.step is TraceStep.SERVICE and step.a == TRACE_HIT and step.b == service:
            return True
        if step.step is TraceStep.FLOW and step.a & 0xFF != TRACE_MISS and step.a >> 32 == service:
            return True
        if step.step is TraceStep.SNAT_SLOT and step.a == TRACE_HIT:
            return True  # a frontend at a SNAT address and port whose slot is held: the packet is a reply
    return False


def _stranger_fault(programs: DryPrograms, place: Place, family: Family) -> str:
    """Without frontends a packet to a stranger must pass."""
    frame = _frame(place, _CLIENT[family], (packet_frame.TCP, _STRANGER[family], 80))
    verdict = programs.run(place.program, frame, place.ifindex).result.verdict
    passes = verdict == Xdp.PASS if place.program == "xdp" else verdict in (Tc.OK, Tc.UNSPEC)
    return "" if passes else f"a packet to no Service does not pass {place.program} of {place.device}"
