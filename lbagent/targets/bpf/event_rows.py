"""Events as rows: the keys of `monitor -o json` (docs/operations.md, "Events"), and which events a filter selects."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lbagent.maps.event_layout import EventHook
from lbagent.maps.event_reader import Event
from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.flow_lines import L4_WORDS, host_text
from lbagent.maps.frontend_codec import reverse_nat_frontend
from lbagent.maps.layout import HOST_ORDER, PATH, PATH_L4_SHIFT, PathL4
from lbagent.maps.map_names import family_map
from lbagent.maps.pinned_maps import PinnedMaps
from lbagent.maps.reasons import Reason, label, verdict_of
from lbagent.model.address import L3n4Addr
from lbagent.targets.bpf.packet_frame import Endpoints, read_frame

Row = dict[str, Any]
NameOf = Callable[[int, str], str | None]  # service id, frontend -> NAMESPACE/NAME
L4: Mapping[int, PathL4] = {6: PathL4.TCP, 17: PathL4.UDP, 132: PathL4.SCTP}
_TCP = 6
_REASONS: Mapping[int, str] = {int(reason): label(reason) for reason in Reason}
_HOOKS: Mapping[int, str] = {int(hook): hook.name.lower() for hook in EventHook}
# the frame is a backend's: its destination is no frontend
OF_BACKENDS = frozenset({Reason.PASS_FOREIGN_SOURCE, Reason.DROP_FOREIGN_SOURCE, Reason.DROP_REPLY_CLASH})


class EventBackend(Struct, frozen=True, gc=False):
    """A backend as its path record is now. `source`: the node's address that it sees with SNAT."""

    address: bytes
    port: int
    l4: PathL4
    source: bytes

    @property
    def text(self) -> str:
        """`10.0.0.1:8080/TCP`."""
        return f"{host_text(self.address)}:{self.port}/{L4_WORDS[self.l4]}"


class EventRows:
    """Rows of events, with what the maps have about them now."""

    def __init__(self, maps: PinnedMaps, name_of: NameOf) -> None:
        self._maps, self.name_of = maps, name_of
        self._devices: dict[int, str] = {}

    def row(self, event: Event) -> Row:
        """Return the row of an event. What is not known is None. Raises KernelError."""
        ends = read_frame(event.frame)
        backend = self._backend(ends, event)
        frontend = self._frontend(ends, event)
        return {
            "time": time_text(event.time),
            "reason": _REASONS.get(event.reason, str(event.reason)),
            "verdict": verdict_of(event.reason),
            "device": self._device(event.device),
            "hook": _HOOKS.get(event.hook, str(event.hook)),
            "protocol": ends.protocol_name.upper() or None,
            "source": _end(ends.source, ends.source_port),
            "destination": _end(ends.destination, ends.destination_port),
            "flags": ends.flag_text if ends.protocol == _TCP and ends.source_port is not None else None,
            "length": event.length,
            "service": self.name_of(event.service, frontend) if frontend else None,
            "frontend": frontend,
            "backend": backend.text if backend else None,
            "snat": f"{host_text(backend.source)}:{event.snat_port}" if backend and event.snat_port else None,
            "generation": event.generation,
            "cpu": event.cpu,
        }

    def is_selected(self, wanted: FlowFilter, event: Event) -> bool:
        """Whether a filter of flows selects an event. A reply has its frontend's Service. Raises as `row`."""
        ends = read_frame(event.frame)
        if ends.family not in wanted.families:
            return False
        l4 = L4.get(ends.protocol)
        if wanted.l4 is not None and wanted.l4 is not l4:
            return False
        reply = self._replied(ends, event)
        for each, address, port in (
            (wanted.client, ends.source, ends.source_port),
            (
                wanted.frontend,
                reply.address if reply else ends.destination,
                reply.port if reply else ends.destination_port,
            ),
        ):
            if each is not None and not each.matches(address, -1 if port is None else port, -1 if l4 is None else l4):
                return False
        if wanted.backend is not None:
            backend = self._backend(ends, event)
            if backend is None or not wanted.backend.matches(backend.address, backend.port, backend.l4):
                return False
        if not wanted.service:
            return True
        frontend = self._frontend(ends, event)
        return frontend is not None and self.name_of(event.service, frontend) == wanted.service

    def _frontend(self, ends: Endpoints, event: Event) -> str | None:
        l4 = L4.get(ends.protocol)
        if l4 is None or ends.destination_port is None or event.reason in OF_BACKENDS:
            return None
        if reply := self._replied(ends, event):
            return f"{host_text(reply.address)}:{reply.port}/{L4_WORDS[l4]}"
        if event.reason == Reason.FWD_REPLY:
            return None
        return f"{host_text(ends.destination)}:{ends.destination_port}/{L4_WORDS[l4]}"

    def _replied(self, ends: Endpoints, event: Event) -> L3n4Addr | None:
        return replied_frontend(self._maps, ends, event) if event.reason == Reason.FWD_REPLY else None

    def _backend(self, ends: Endpoints, event: Event) -> EventBackend | None:
        if not event.backend or ends.family is None:
            return None
        record, name = PATH[ends.family], family_map(ends.family, "path")
        if (event.backend + 1) * record.size > self._maps.specs[name].value_size:
            return None
        with self._maps.window(name, event.backend * record.size, record.size) as view:
            address, source, port, _, flags, *_ = record.codec.unpack(view)
        if not any(address):
            return None
        l4 = PathL4(flags >> PATH_L4_SHIFT & max(PathL4))
        kept = (
            ends.source_port if event.reason == Reason.FWD_REPLY else ends.destination_port
        )  # behind a range of ports
        return EventBackend(address, int.from_bytes(port, "big") or kept or 0, l4, source)

    def _device(self, index: int) -> str:
        if index not in self._devices:
            try:
                self._devices[index] = socket.if_indextoname(index)
            except OSError:  # it is gone, or of another network namespace
                self._devices[index] = str(index)
        return self._devices[index]


def replied_frontend(maps: PinnedMaps, ends: Endpoints, event: Event) -> L3n4Addr | None:
    """Return the frontend of a reply; None: its Service is gone. Raises KernelError."""
    if ends.family is None:
        return None
    value = maps.get(family_map(ends.family, "reverse_nat"), event.service.to_bytes(4, HOST_ORDER))
    if not value or not any(value):
        return None
    found = reverse_nat_frontend(value)
    return found if found.port else replace(found, port=ends.source_port or 0)  # a range: the reply keeps its port


def text_line(row: Row) -> str:
    """Return a row for people."""
    parts = [row["time"][11:], row["verdict"], row["reason"], row["protocol"] or "-"]
    parts += [f"{row['source'] or '-'} > {row['destination'] or '-'}"]
    parts += [f"[{row['flags']}]"] if row["flags"] else []
    parts += [row["service"]] if row["service"] else []
    parts += [f"to {row['backend']}"] if row["backend"] else []
    parts += [f"from {row['snat']}"] if row["snat"] else []
    parts += [f"by {row['device']}"]
    return " ".join(parts)


def _end(address: bytes, port: int | None) -> str | None:
    if not address:
        return None
    return host_text(address) if port is None else f"{host_text(address)}:{port}"


def time_text(seconds: float) -> str:
    """Return Unix time as `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
