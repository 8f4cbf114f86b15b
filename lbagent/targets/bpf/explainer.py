"""Explains packets: builds their frames, runs the dry programs over maps that serve, and reads the trace. Changes nothing.

What serves (maps, settings, devices, State) is a `Scene`; the agent's is what is in force, or private maps that were filled from
manifests (private_maps.py). Blocks: call it in a thread, in the network namespace of the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lbagent.bpf.hooks import TC_AFTER_XDP, TC_EGRESS, TC_INGRESS, XDP
from lbagent.bpf.run.packet_run import Tc, Xdp
from lbagent.errors import ConfigError, NotFound
from lbagent.maps.reasons import Reason, label
from lbagent.model.address import L3n4Addr, format_ip, parse_ip
from lbagent.targets.bpf import packet_frame
from lbagent.targets.bpf.explained_trace import (
    OUT_STACK,
    ExplainedTrace,
    MapView,
    destination_text,
    source_text,
)
from lbagent.targets.bpf.packet_frame import Endpoints
from lbagent.targets.bpf.reason_advice import ADVICE, NO_PROGRAM, NO_PROXY, NO_SERVICE, OTHER_MAC
from lbagent.targets.explanation import Explanation, Output, Packet, PacketQuestion

if TYPE_CHECKING:
    from lbagent.bpf.run.dry_programs import DryPrograms, DryResult
    from lbagent.maps.lbmaps import LBMaps
    from lbagent.model.state import State
    from lbagent.net.snapshot import Link, NodeNetwork

HOOKS = {"xdp": XDP.program, "tc_ingress": TC_INGRESS.program, "tc_egress": TC_EGRESS.program}
_INGRESS = {"xdp": "xdp", "xdp-generic": "xdp", "tc_ingress": "tc_ingress"}
_NO_MAC = bytes(6)
_PEER_MAC = bytes.fromhex("02000000feed")  # of the host that sends the frame
_MIN_HEAD = 14  # bytes of an Ethernet header
_HEADS = {b"\x08\x00": 34, b"\x86\xdd": 54}  # bytes that a test run of tc needs of a frame of this type
_HAND_OVER = (Reason.PASS_NEIGHBOR, Reason.PASS_MTU, Reason.PASS_L7)


class Scene(NamedTuple):
    """What packets meet."""

    programs: DryPrograms
    maps: LBMaps
    state: State
    generation: int
    network: NodeNetwork
    hooks: Mapping[str, Iterable[str]]  # words of hooks by device, of the devices that have programs
    reply_ports: tuple[int, int]


class _Place(NamedTuple):
    """Where a packet meets a program. `hook` '': no program is there."""

    link: Link
    hook: str


def explain(scene: Scene, questions: Iterable[PacketQuestion], device: str, hook: str) -> list[Explanation]:
    """Return what would happen to each packet. Raises ConfigError, NotFound for an unknown device, KernelError."""
    if hook and hook not in HOOKS:
        raise ConfigError(f"--hook {hook}: there are {', '.join(HOOKS)}")
    return [_explained(scene, question, device, hook) for question in questions]


def _explained(scene: Scene, question: PacketQuestion, device: str, hook: str) -> Explanation:
    if question.frame:
        try:
            frame = bytes.fromhex(question.frame)
        except ValueError:
            raise ConfigError("a frame is not hexadecimal digits") from None
        if len(frame) < _MIN_HEAD:
            raise ConfigError(f"a frame has {len(frame)} bytes; an Ethernet header has {_MIN_HEAD}")
        packet = packet_frame.read_frame(frame)
        try:
            place = _place(scene, packet.source, packet.destination, device, hook)
        except NotFound as error:
            if device:
                raise
            return _unplaced(scene, packet, len(frame), str(error))  # the other frames of a capture are explained
        frame = packet_frame.shortened(packet_frame.addressed_to(frame, place.link.mac or _NO_MAC))
    else:
        to = _tuple(question)
        place = _place(scene, to.source, to.destination, device, hook)
        mac = place.link.mac or _NO_MAC
        flags = packet_frame.flag_bits(question.flags) if to.protocol == packet_frame.TCP else 0
        frame = packet_frame.make_frame(
            to, mac + (mac if place.hook == "tc_egress" else _PEER_MAC), flags=flags, length=question.length
        )
        packet = packet_frame.read_frame(frame)
    return _run(scene, place, frame, packet)


def _tuple(question: PacketQuestion) -> packet_frame.Tuple:
    """Return the addresses of a question. Raises ConfigError."""
    protocol = packet_frame.PROTOCOLS.get(question.protocol.lower())
    if protocol is None:
        raise ConfigError(f"DST: unknown protocol {question.protocol!r}; there are TCP, UDP, SCTP and ICMP")
    if protocol == packet_frame.ICMP:
        return _ping(question)
    ends = []
    for name, text in (("SRC", question.source), ("DST", question.destination)):
        try:
            found = L3n4Addr.parse(text)
        except ValueError as error:
            raise ConfigError(f"{name} {text!r}: {error}; expected ADDRESS:PORT, [ADDRESS]:PORT for IPv6") from None
        ends.append(found)
    source, destination = ends
    if source.family is not destination.family:
        raise ConfigError(f"SRC {source} and DST {destination} are of different address families")
    return packet_frame.Tuple(protocol, source.address, source.port, destination.address, destination.port)


def _ping(question: PacketQuestion) -> packet_frame.Tuple:
    """Return the addresses of a ping. Raises ConfigError."""
    ends = []
    for name, text in (("SRC", question.source), ("DST", question.destination)):
        try:
            ends.append(parse_ip(text.removeprefix("[").removesuffix("]")))
        except ValueError as error:
            raise ConfigError(f"{name} {text!r}: {error}; a ping is ADDRESS to ADDRESS/ICMP, without ports") from None
    source, destination = ends
    if len(source) != len(destination):
        raise ConfigError(f"SRC {question.source} and DST {question.destination} are of different address families")
    protocol = packet_frame.ICMP if len(source) == 4 else packet_frame.ICMP6
    return packet_frame.Tuple(protocol, source, 0, destination, 0)


def _place(scene: Scene, source: bytes, destination: bytes, device: str, hook: str) -> _Place:
    """Return where the packet meets a program: by default where the route to its source leads. Raises NotFound."""
    network = scene.network
    leaves = hook == "tc_egress" or (not hook and bool(source) and network.is_own(source))
    if device:
        link = network.by_name(device)
        if link is None:
            raise NotFound(
                f"no device {device!r}; there are {', '.join(sorted(each.name for each in network.links.values()))}"
            )
    else:
        end = destination if leaves else source
        route = network.route(end) if end else None
        link = network.links.get(route.ifindex) if route is not None else None
        if link is None:
            raise NotFound(f"no route leads to {format_ip(end) if end else 'its address'}; name a device with --device")
    present = [*scene.hooks.get(link.name, ())]
    if hook:
        return _Place(link, hook)
    if leaves:
        return _Place(link, "tc_egress" if "tc_egress" in present else "")
    return _Place(link, next((_INGRESS[word] for word in present if word in _INGRESS), ""))


def _unplaced(scene: Scene, packet: Endpoints, length: int, why: str) -> Explanation:
    """Return the answer about a frame of which it is not clear by which device it comes."""
    return Explanation(
        _shown(packet, length, "", ""), [], "pass", "", None, None, None, None, None, scene.generation, why
    )


def _shown(packet: Endpoints, length: int, device: str, hook: str) -> Packet:
    return Packet(
        family=f"IPv{packet.family.digit}" if packet.family else "", protocol=packet.protocol_name, source=source_text(packet),
        destination=destination_text(packet), flags=packet.flag_text, length=length, device=device, hook=hook,
    )  # fmt: skip


def _run(scene: Scene, place: _Place, frame: bytes, packet: Endpoints) -> Explanation:
    link = place.link
    shown = _shown(packet, len(frame), link.name, place.hook)
    answer = Explanation(shown, [], "pass", "", None, None, None, None, None, scene.generation)
    if not place.hook:
        answer.advice = NO_PROGRAM
        return answer
    program = HOOKS[place.hook]
    if place.hook != "xdp" and len(frame) < _HEADS.get(frame[12:14], _MIN_HEAD):
        return answer  # no program gets a frame without its IP header
    run = scene.programs.run(program, frame, link.index)
    traced = _traced(scene, packet, run)
    if program == XDP.program and traced.reason in _HAND_OVER and run.result.verdict == Xdp.PASS:
        left = traced.reason
        program = TC_AFTER_XDP.program
        run = scene.programs.run(program, packet_frame.handed_over(frame), link.index)
        traced = _traced(scene, packet, run)
        shown.hook = program
        answer.advice = ADVICE[left]
    return _filled(scene, answer, place, program, run, traced)


def _traced(scene: Scene, packet: Endpoints, run: DryResult) -> ExplainedTrace:
    def device_name(index: int) -> str:
        link = scene.network.links.get(index)
        return link.name if link else f"device {index}"

    view = MapView(scene.maps, scene.state, device_name, scene.reply_ports)
    return ExplainedTrace(view, packet, packet_frame.read_frame(run.result.packet), run.trace)


def _filled(
    scene: Scene, answer: Explanation, place: _Place, program: str, run: DryResult, traced: ExplainedTrace
) -> Explanation:
    reason = traced.reason
    answer.steps = traced.steps()
    answer.action = _action(program, run.result.verdict)
    answer.reason = label(reason) if reason is not None else None
    answer.verdict = _verdict(program, run, traced)
    _name_service(scene, answer, traced)
    if answer.verdict in ("forward", "local", "answer"):
        device = "" if answer.verdict == "local" else _device_out(scene, place, traced)
        answer.output = Output(source_text(traced.out), destination_text(traced.out), device)
    if reason is Reason.REJECT_NO_BACKEND and any(step.step == "proxy" for step in answer.steps):
        answer.advice = NO_PROXY
    elif reason in ADVICE and (answer.verdict != "forward" or not answer.advice):
        answer.advice = ADVICE[reason]
    elif reason is None and answer.verdict == "pass":
        concerned = any(step.step == "filter" and step.entry for step in answer.steps)
        answer.advice = OTHER_MAC if concerned and place.hook == "xdp" else NO_SERVICE
    return answer


def _action(program: str, verdict: int) -> str:
    """Return the verdict as the kernel names it."""
    if program == XDP.program:
        return f"XDP_{Xdp(verdict).name}"
    return f"TC_ACT_{Tc(verdict).name}"


def _verdict(program: str, run: DryResult, traced: ExplainedTrace) -> str:
    reason, verdict = traced.reason, run.result.verdict
    is_xdp = program == XDP.program
    if verdict in ((Xdp.DROP, Xdp.ABORTED) if is_xdp else (Tc.SHOT,)):
        return "drop"
    if reason is None or reason.name.startswith("PASS_"):
        return "pass"
    if reason.name.startswith(("REJECT_", "ANSWER_")):
        return "answer"
    if reason is Reason.FWD_L7:
        return "local"
    if traced.out_kind == OUT_STACK and (reason is Reason.FWD_LOCAL or program != TC_EGRESS.program):
        return "local"
    return "forward"


def _device_out(scene: Scene, place: _Place, traced: ExplainedTrace) -> str:
    """Return the device by which the frame leaves: that of a redirect, else its own."""
    link = scene.network.links.get(traced.sent_by)
    return link.name if link else place.link.name


def _name_service(scene: Scene, answer: Explanation, traced: ExplainedTrace) -> None:
    ident = traced.service_id
    svc = next((each for each in scene.state.services if each.id == ident), None) if ident else None
    if svc is not None:
        answer.service = str(svc.name)
        answer.frontend = svc.frontend.with_protocol()
    backend = traced.backend
    if backend is not None and traced.packet.family is not None:
        answer.backend = str(backend)
