"""The trace of a dry program as the steps that `explain` shows. Reads maps, writes none.

The programs record what they found (maps/trace_layout.py), the maps have the entries behind it. A look-up that a later one
replaces is not shown: a SYN selects a backend before it finds its flow (slow_path.h).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from lbagent.maps import frontend_codec
from lbagent.maps.flow_layout import FLOW, FORWARD_MODE_SHIFT, FORWARD_PORT_BITS, FlowState, ForwardMode
from lbagent.maps.layout import LB_SERVICE, NEXTHOPS, PATH, SERVICE_NONE, PathFlag
from lbagent.maps.map_names import family_map
from lbagent.maps.reasons import Reason, label
from lbagent.maps.trace_layout import (
    TRACE_HIT,
    TRACE_PROXY_CONNECTED,
    TRACE_PROXY_FOUND,
    TRACE_PROXY_LEAVES,
    TRACE_PROXY_NONE,
    TRACE_WILDCARD,
    TraceStep,
)
from lbagent.model.address import L3n4Addr, L4Type, Scope, format_ip
from lbagent.model.kinds import SVCType
from lbagent.targets.explanation import Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lbagent.maps.lbmaps import LBMaps
    from lbagent.maps.trace_layout import TraceRecord
    from lbagent.model.service import SVC
    from lbagent.model.state import State
    from lbagent.targets.bpf.packet_frame import Endpoints

# bits of the prefilter (bpf/include/parse/parse.h): CONCERN_DIRECT is CONCERN_SNAT without CONCERN_VIP
CONCERN_VIP, CONCERN_SNAT, CONCERN_SOURCE = 1, 2, 4
BOTH = CONCERN_VIP | CONCERN_SNAT
OUT_NEXTHOP, OUT_STACK, OUT_NEIGHBOR, OUT_NONE = range(4)  # bpf/include/forward/fwd.h
_RESULTS_OF_OUT = ("neighbour", "stack", "kernel", "none")
_ANSWERS = {Reason.ANSWER_TOO_BIG: "too-big", Reason.ANSWER_TTL: "time-exceeded", Reason.ANSWER_ECHO: "echo-reply"}
# of the step `proxy`, by TRACE_PROXY_*: its result and text
_OF_PROXY = {
    TRACE_PROXY_NONE: ("none", "no proxy on this node waits at port {port}"),
    TRACE_PROXY_LEAVES: ("none", "the packet leaves this node, and cannot be given to the proxy at port {port}"),
    TRACE_PROXY_CONNECTED: ("connection", "the proxy has its connection"),
    TRACE_PROXY_FOUND: ("new", "the proxy at port {port} gets it"),
}
# of a packet, by SCOPE_* (bpf/include/service/service.h)
_WHERE = ("from outside the cluster", "from inside the cluster", "from a device, and leaves by another one")
ICMP_NUMBERS = (1, 58)  # of IPv4 and IPv6
IS_EVENT = 128  # numbers of Event begin here
META_FLAGS_SHIFT, META_NEXTHOP_SHIFT = 24, 32  # of flags and next hop in a path record's meta word


class PathEntry(NamedTuple):
    """A path record, read."""

    backend: L3n4Addr
    snat: bytes
    flags: int
    mtu: int


class MapView(NamedTuple):
    """What entries are read from."""

    maps: LBMaps
    state: State
    device_name: Callable[[int], str]
    reply_ports: tuple[int, int]

    def path(self, packet: Endpoints, ident: int) -> PathEntry:
        """Return a backend's path record."""
        assert packet.family is not None
        layout = PATH[packet.family]
        name = family_map(packet.family, "path")
        at = (ident & (self.maps.sizes.backends - 1)) * layout.size
        base = at & ~7
        with self.maps.window(name, base, (at - base + layout.size + 7) & ~7) as view:
            fields = layout.unpack(bytes(view[at - base : at - base + layout.size]))
        address, snat, port, _, flags, _, mtu = fields[:7]
        assert isinstance(address, bytes)
        assert isinstance(snat, bytes)
        assert isinstance(port, bytes)
        kept = packet.source_port if packet.source == address else packet.destination_port  # behind a range of ports
        number = int.from_bytes(port, "big") or kept or 0
        return PathEntry(L3n4Addr(address, number, l4_type(packet)), snat, int(flags), int(mtu))

    def service(self, ident: int) -> SVC | None:
        """Return the frontend with this id."""
        if ident == SERVICE_NONE:
            return None
        return next((svc for svc in self.state.services if svc.id == ident), None)


def l4_type(packet: Endpoints) -> L4Type:
    """Return the protocol of a packet with ports."""
    return L4Type.from_number(packet.protocol)


def source_text(packet: Endpoints) -> str:
    """Return a packet's source as text."""
    return _endpoint(packet.source, packet.source_port)


def destination_text(packet: Endpoints) -> str:
    """Return a packet's destination as text."""
    return _endpoint(packet.destination, packet.destination_port)


def _endpoint(address: bytes, port: int | None) -> str:
    if not address:
        return ""
    return format_ip(address) if port is None else str(L3n4Addr(address, port))


class ExplainedTrace:
    """The records of one run, by step: the last of each kind counts."""

    def __init__(self, view: MapView, packet: Endpoints, out: Endpoints, trace: Sequence[TraceRecord]) -> None:
        """`out`: what the frame says after the run."""
        self.view, self.packet, self.out, self.trace = view, packet, out, trace
        self.last: Mapping[TraceStep, TraceRecord] = {record.step: record for record in trace}
        reasons = [record.a for record in trace if record.step is TraceStep.REASON and record.a < IS_EVENT]
        self.reason = Reason(reasons[-1]) if reasons else None

    # --- what the run found ---

    @property
    def is_stale(self) -> bool:
        """Whether the packet's flow needs another backend."""
        return TraceStep.STALE in self.last

    @property
    def is_new(self) -> bool:
        """Whether a backend was selected for this packet."""
        return not self.flow_hit or self.is_stale

    @property
    def flow_hit(self) -> bool:
        """Whether the packet has a flow."""
        record = self.last.get(TraceStep.FLOW)
        return record is not None and bool(record.a & TRACE_HIT)

    @property
    def service_id(self) -> int:
        """Id of the frontend, 0: none."""
        if self.is_new and TraceStep.SERVICE in self.last:
            return self.last[TraceStep.SERVICE].b
        for step in (TraceStep.FLOW, TraceStep.SNAT_SLOT):
            record = self.last.get(step)
            if record is not None and record.a & TRACE_HIT:
                return (record.a >> 32) if step is TraceStep.FLOW else (record.b >> 32)
        return SERVICE_NONE

    @property
    def backend_id(self) -> int:
        """Id of the backend's path record, 0: none."""
        if self.is_new and TraceStep.SELECT in self.last:
            select, path = self.last[TraceStep.SELECT], self.last.get(TraceStep.PATH)
            return 0 if select.b else path.a if path is not None else select.a
        if self.flow_hit:
            return int(self.last[TraceStep.FLOW].b >> FLOW_BACKEND_SHIFT)
        slot = self.last.get(TraceStep.SNAT_SLOT)
        return slot.b & 0xFFFFFFFF if slot is not None else 0

    @property
    def backend(self) -> L3n4Addr | None:
        """The backend of the packet; None without one."""
        ident = self.backend_id
        return self.view.path(self.packet, ident).backend if ident and self.packet.family else None

    @property
    def out_kind(self) -> int | None:
        """How it leaves: OUT_*; None: it does not."""
        record = self.last.get(TraceStep.NEXT_HOP)
        return record.a if record is not None else None

    @property
    def sent_by(self) -> int:
        """The device by which the frame is sent, 0: none of bpf_redirect."""
        record = self.last.get(TraceStep.SEND)
        return record.a if record is not None else 0

    @property
    def is_translated(self) -> bool:
        """Whether addresses or ports changed."""
        return self.out[2:6] != self.packet[2:6]

    # --- steps ---

    def steps(self) -> list[Step]:
        """Return the steps that were taken, in their order."""
        found = [
            self._parse(), self._filter(), self._snat_slot(), self._flow(),
            *(self._selection() if self.is_new else ()),
            self._path(), self._next_hop(), self._rewrite(), self._answer(),
        ]  # fmt: skip
        return [step for step in found if step is not None]

    def _parse(self) -> Step:
        packet = self.packet
        if packet.family is None:
            return Step("parse", "unknown", "the frame is no IP packet")
        kind = "full" if TraceStep.PARSE in self.last else "plain"
        words = [f"IPv{packet.family.digit}", packet.protocol_name.upper(), packet.flag_text]
        text = " ".join(word for word in words if word)
        is_odd = (
            kind == "full" and packet.protocol_name != "sctp"
        )  # whose packets all have another parser than the plain one
        why = ", with more headers than a plain one" if is_odd else ""
        return Step("parse", kind, f"{text} from {source_text(packet)} to {destination_text(packet)}{why}")

    def _filter(self) -> Step | None:
        record = self.last.get(TraceStep.FILTER)
        if record is None:
            return None
        what = []
        if record.a & CONCERN_VIP:
            what.append("snat" if record.a & CONCERN_SNAT else "frontend")
        elif record.a & CONCERN_SNAT:
            what.append("backend")
        if record.a & CONCERN_SOURCE:
            what.append("source")
        texts = {
            "snat": "the destination is an address of this node: a frontend, or one that it translates to",
            "frontend": "the destination may be the address of a frontend",
            "backend": "the destination is a backend that sees its clients",
            "source": "the source is a backend that sees its clients",
        }
        result = what[0] if what else "none"
        text = "; ".join(texts[word] for word in what) or "neither address is one of lbagent"
        return Step("filter", result, text, "lb_filter", format_ip(self.packet.destination), "+".join(what) or None)

    def _snat_slot(self) -> Step | None:
        record, packet = self.last.get(TraceStep.SNAT_SLOT), self.packet
        name = family_map(packet.family, "snat") if packet.family else ""
        key = f"{source_text(packet)} to port {packet.destination_port}"
        if record is not None:
            client = _endpoint(self.out.destination, self.out.destination_port) if self.is_translated else "its client"
            return Step(
                "snat-slot", "hit", f"port {packet.destination_port} is held by the flow of {client} to {source_text(packet)}",
                name, key, f"backend {record.b & 0xFFFFFFFF}, service {record.b >> 32}",
            )  # fmt: skip
        found = self.last.get(TraceStep.FILTER)
        first, last = self.view.reply_ports
        port = packet.destination_port
        if found is None or found.a & BOTH != BOTH or port is None or not first <= port <= last:
            return None
        return Step("snat-slot", "miss", f"port {port} is held by no flow towards {source_text(packet)}", name, key)

    def _flow(self) -> Step | None:
        record = self.last.get(TraceStep.FLOW)
        if record is None or self.packet.family is None:
            return None
        name, key = (
            family_map(self.packet.family, "flow"),
            f"{source_text(self.packet)} to {destination_text(self.packet)}",
        )
        if not record.a & TRACE_HIT:
            return Step("flow", "miss", "the packet belongs to no flow yet", name, key)
        word = record.b
        state = FlowState(word >> _STATE_SHIFT & 3).name.lower()
        backend = word >> FLOW_BACKEND_SHIFT
        address = str(self.view.path(self.packet, backend).backend) if backend else "none"
        entry = f"backend {address}, {state}, {_forward_text(word)}, service {record.a >> 32}"
        if self.is_stale:
            return Step(
                "flow", "stale", f"its flow had backend {address}, which it can no longer use", name, key, entry
            )
        return Step("flow", "hit", f"it belongs to a flow to backend {address} ({state})", name, key, entry)

    def _selection(self) -> list[Step | None]:
        return [
            self._service(),
            self._scope(),
            self._source_range(),
            self._proxy(),
            self._affinity(),
            self._select(),
            self._snat_port(),
        ]

    def _service(self) -> Step | None:
        record, packet = self.last.get(TraceStep.SERVICE), self.packet
        if record is None or packet.family is None:
            return None
        if packet.protocol in ICMP_NUMBERS:
            return self._service_of_ping(record.b)
        if packet.destination_port is None:
            return None
        name = family_map(packet.family, "service")
        frontend = L3n4Addr(packet.destination, packet.destination_port, l4_type(packet))
        key = frontend.with_protocol()
        if record.a == TRACE_WILDCARD:
            return Step("service", "miss", "the address is a ClusterIP, but it has no such port", name, key)
        if not record.a & TRACE_HIT:
            return Step("service", "miss", "no Service has this address, port and protocol", name, key)
        svc, scope = self.view.service(record.b), self.last.get(TraceStep.SCOPE)
        title = str(svc.name) if svc else f"id {record.b}"
        what = "is a frontend"
        if svc and svc.frontend.last_port:
            frontend = svc.frontend.with_scope(Scope.EXTERNAL)
            what = f"is in the range {frontend.port_text}"
        is_inside = svc.frontend.scope is Scope.INTERNAL if svc else bool(scope and scope.a)
        entry = self._master(frontend, internal=is_inside)
        redirected = f" ({svc.type})" if svc and svc.type is SVCType.LOCAL_REDIRECT else ""
        return Step("service", "hit", f"{key} {what} of Service {title}{redirected}", name, key, entry)

    def _service_of_ping(self, ident: int) -> Step:
        """A ping has no port: one frontend of the address decides."""
        svc, address = self.view.service(ident), format_ip(self.packet.destination)
        title = f"{svc.frontend.with_protocol()} of Service {svc.name}" if svc else f"id {ident}"
        return Step("service", "hit", f"{title} decides about pings of {address}", "lb_echo", address, f"id {ident}")

    def _master(self, frontend: L3n4Addr, *, internal: bool) -> str | None:
        """Return the master entry as text."""
        assert self.packet.family is not None
        name = family_map(self.packet.family, "service")
        outer = self.view.maps.get(name, frontend_codec.service_key(frontend, 0))
        inside = frontend.with_scope(Scope.INTERNAL)
        value = self.view.maps.get(name, frontend_codec.service_key(inside, 0)) if internal else None
        if value is None:
            value = outer
        if value is None:
            return None
        _, count, ident, _, _, unselectable = LB_SERVICE.unpack(value)
        assert isinstance(ident, bytes)
        return f"id {int.from_bytes(ident, 'big')}, {int(count)} backends for new flows, {int(unselectable)} for others"

    def _scope(self) -> Step | None:
        record = self.last.get(TraceStep.SCOPE)
        if record is None:
            return None
        result = "internal" if record.a else "external"
        where = _WHERE[record.a]
        if record.b:
            return Step("scope", result, f"it comes {where}, and is not served there ({label(Reason(record.b))})")
        return Step("scope", result, f"it comes {where}")

    def _source_range(self) -> Step | None:
        record, packet = self.last.get(TraceStep.SOURCE_RANGE), self.packet
        if record is None or packet.family is None:
            return None
        name, key = family_map(packet.family, "source_range"), f"service {self.service_id}, {format_ip(packet.source)}"
        if record.a:
            return Step("source-range", "out", f"the Service does not admit {format_ip(packet.source)}", name, key)
        return Step("source-range", "in", f"the Service admits {format_ip(packet.source)}", name, key)

    def _proxy(self) -> Step | None:
        record = self.last.get(TraceStep.PROXY)
        if record is None:
            return None
        result, text = _OF_PROXY[record.a]
        return Step("proxy", result, text.format(port=record.b))

    def _affinity(self) -> Step | None:
        record, packet = self.last.get(TraceStep.AFFINITY), self.packet
        if record is None or packet.family is None:
            return None
        name, key = family_map(packet.family, "affinity"), f"{format_ip(packet.source)}, service {self.service_id}"
        if not record.a:
            return Step("affinity", "miss", "the client has used no backend of the Service lately", name, key)
        backend = self.view.path(packet, record.a).backend
        return Step("affinity", "hit", f"the client used {backend} before", name, key, f"backend {backend}")

    def _select(self) -> Step | None:
        record, packet = self.last.get(TraceStep.SELECT), self.packet
        svc = self.view.service(self.service_id)
        if TraceStep.PROXY in self.last:
            return None
        if record is None:
            if self.reason is Reason.DROP_NO_BACKEND and TraceStep.ANSWER not in self.last:
                return Step("select", "none", "no frontend of the address has a backend for a new flow")
            if self.reason not in (Reason.REJECT_NO_BACKEND, Reason.DROP_NO_LOCAL_BACKEND):
                return None
            return Step("select", "none", "the Service has no backend for a new flow")
        if record.b:
            return Step("select", "none", f"no backend fits ({label(Reason(record.b))})")
        affinity = self.last.get(TraceStep.AFFINITY)
        algorithm = svc.algorithm.name.lower() if svc else "random"
        how = "affinity" if affinity is not None and affinity.a == record.a else algorithm
        backend = self.view.path(packet, record.a).backend
        map_name = family_map(packet.family, "maglev" if how == "maglev" else "service") if packet.family else None
        return Step("select", how, f"backend {backend} was selected", map_name, None, f"backend {record.a}")

    def _snat_port(self) -> Step | None:
        record, packet = self.last.get(TraceStep.SNAT_PORT), self.packet
        if record is None or packet.family is None:
            return None
        path = self.view.path(packet, record.b)
        name, key = family_map(packet.family, "snat"), f"{format_ip(path.snat)} to {path.backend}"
        if not record.a:
            return Step("snat-port", "none", f"no port is free towards {path.backend}", name, key)
        return Step(
            "snat-port",
            str(record.a),
            f"port {record.a} of {format_ip(path.snat)} is free towards {path.backend}",
            name,
            key,
        )

    def _path(self) -> Step | None:
        record, packet = self.last.get(TraceStep.PATH), self.packet
        if record is None or packet.family is None:
            return None
        path = self.view.path(packet, record.a)
        meta = record.b >> META_FLAGS_SHIFT & 0xFF
        local = bool(meta & (PathFlag.LOCAL | PathFlag.HOST))
        words = [flag.name.lower() for flag in PathFlag if meta & flag and flag.name]
        where = "on this node" if local else "on another node"
        return Step(
            "path", "local" if local else "remote", f"backend {path.backend} is {where}, MTU {path.mtu}",
            family_map(packet.family, "path"), f"id {record.a}", ", ".join(words) or None,
        )  # fmt: skip

    def _next_hop(self) -> Step | None:
        record = self.last.get(TraceStep.NEXT_HOP)
        if record is None:
            return None
        device = self.view.device_name(record.b) if record.b else ""
        texts = {
            OUT_NEXTHOP: f"the neighbour's MAC address on {device} is known",
            OUT_STACK: "it goes up to this node's own stack",
            OUT_NEIGHBOR: f"it leaves by {device}, for which the kernel finds the neighbour",
            OUT_NONE: "there is no route or no neighbour",
        }
        entry = f"device {device}" if device else None
        result = _RESULTS_OF_OUT[record.a & 3]
        path = self.last.get(TraceStep.PATH)
        index = path.b >> META_NEXTHOP_SHIFT & (NEXTHOPS - 1) if path is not None else 0
        if record.a != OUT_NEXTHOP or not index:
            return Step("next-hop", result, texts[record.a & 3], entry=entry)
        return Step("next-hop", result, texts[record.a & 3], "lb_nexthop", f"index {index}", entry)

    def _rewrite(self) -> Step | None:
        if not self.is_translated or self.answer_reason is not None:
            return None
        before, after = self.packet, self.out
        changed = []
        if before[2:4] != after[2:4]:
            changed.append(f"source {source_text(before)} became {source_text(after)}")
        if before[4:6] != after[4:6]:
            changed.append(f"destination {destination_text(before)} became {destination_text(after)}")
        kinds = ["source"] * (before[2:4] != after[2:4]) + ["destination"] * (before[4:6] != after[4:6])
        return Step("rewrite", "+".join(kinds), ", ".join(changed))

    @property
    def answer_reason(self) -> Reason | None:
        """The reason of the answer that was due; None where none was."""
        record = self.last.get(TraceStep.ANSWER)
        return Reason(record.a) if record is not None else None

    def _answer(self) -> Step | None:
        record = self.last.get(TraceStep.ANSWER)
        if record is None:
            return None
        reason = Reason(record.a)
        result = _ANSWERS.get(reason, "rst" if self.packet.protocol_name == "tcp" else "unreachable")
        if self.reason is Reason.DROP_NO_BACKEND:
            return Step("answer", "none", f"it may not be answered ({label(reason)})")
        mtu = f", MTU {record.b}" if reason is Reason.ANSWER_TOO_BIG else ""
        return Step("answer", result, f"its sender is answered ({label(reason)}{mtu})")


FLOW_BACKEND_SHIFT = next(iter(FLOW.values())).fields["backend"].shift
_STATE_SHIFT = next(iter(FLOW.values())).fields["state"].shift
_FORWARD_SHIFT = next(iter(FLOW.values())).fields["forward"].shift


def _forward_text(word: int) -> str:
    """Return how a value word's flow is forwarded."""
    forward = word >> _FORWARD_SHIFT & 0xFFFF
    if forward & FORWARD_PORT_BITS:
        (port,) = struct.unpack(">H", struct.pack("=H", forward))
        return f"SNAT port {port}"
    return ForwardMode(forward >> FORWARD_MODE_SHIFT).name.lower()
