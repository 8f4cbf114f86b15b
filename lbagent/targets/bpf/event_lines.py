"""Events as lines of `monitor`. Those of one flow share all but the time and the length, and what they share is made once.

To make a row and to encode it takes longer than all other steps together: a reader of every packet prints 100,000 of them a second.
"""

from __future__ import annotations

import json

from lbagent.maps.event_reader import Event
from lbagent.maps.flow_filter import FlowFilter
from lbagent.targets.bpf.event_flows import EventFlows
from lbagent.targets.bpf.event_rows import EventRows, text_line, time_text
from lbagent.targets.bpf.packet_frame import flow_bytes

MAX_KEPT = 1 << 16  # verdicts of flows
_IPV4 = 8  # first byte of the type of Ethernet
_LENGTH = '"length":'
Parts = tuple[str, str]  # of a line: what is between time and length, and what follows the length


class EventLines:
    """Lines of the events that a filter selects: JSON objects, or texts for people."""

    def __init__(self, rows: EventRows, wanted: FlowFilter, flows: EventFlows | None = None, *, as_json: bool) -> None:
        """`flows`: those that the filter selects by their state or age."""
        self._rows, self._wanted, self._flows, self._as_json = rows, wanted, flows, as_json
        self._selected: dict[object, bool] = {}
        self._parts: dict[object, Parts] = {}
        self._time, self._time_text = -1.0, ""  # of the last line: many events are of one tick

    def forget(self) -> None:
        """Make all again: Services may have other names."""
        self._selected.clear()
        self._parts.clear()

    def selects(self, event: Event) -> bool:
        """Return whether the filter selects an event. Raises as EventFlows.selects()."""
        return self._is_selected(event) and (self._flows is None or self._flows.selects(event))

    def _is_selected(self, event: Event) -> bool:
        key = _key(event)
        if key is None:
            return self._rows.is_selected(self._wanted, event)
        found = self._selected.get(key)
        if found is None:
            if len(self._selected) >= MAX_KEPT:
                self.forget()
            found = self._selected[key] = self._rows.is_selected(self._wanted, event)
        return found

    def line(self, event: Event) -> str:
        """Return the line of an event. Raises KernelError."""
        key = _key(event)
        parts = self._parts.get(key) if key is not None else None
        if parts is None:
            parts = self._made(event)
            if key is not None:
                self._parts[key] = parts
        if event.time != self._time:
            self._time, self._time_text = event.time, time_text(event.time)
        if self._as_json:
            return f'{{"time":"{self._time_text}",{parts[0]}{_LENGTH}{event.length}{parts[1]}'
        return f"{self._time_text[11:]}{parts[0]}"

    def _made(self, event: Event) -> Parts:
        row = self._rows.row(event)
        if not self._as_json:
            return text_line(row).removeprefix(row["time"][11:]), ""
        before, _, after = json.dumps(row, separators=(",", ":")).partition(f"{_LENGTH}{event.length}")
        return before.partition(",")[2], after


def _key(event: Event) -> object:
    """Return what decides about all of a line but time and length; None for a frame that needs more than fixed places."""
    ends = flow_bytes(event.frame)
    if ends is None:
        return None
    flags = event.frame[47:48] if event.frame[12] == _IPV4 else event.frame[67:68]  # of TCP
    return (
        ends, flags, event.reason, event.backend, event.service, event.snat_port, event.device, event.hook, event.generation,
        event.cpu,
    )  # fmt: skip
