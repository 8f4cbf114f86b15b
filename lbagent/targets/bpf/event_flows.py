"""The flows of events: whether the flow table has, for an event's packet, a flow in a state or without packets for so long.

An event has no state of its flow. What counts is the table when the event is looked at: a tenth of a second after the packet, or
much later for events that were kept. An event without a flow (a refusal, a fragment, a flow that has ended) is not selected.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.flow_hash import FlowEnd
from lbagent.maps.flow_lines import FlowLines
from lbagent.maps.flow_reader import find_flow, snat_client
from lbagent.maps.flow_settings import FlowSettings, flow_settings, ticks_now
from lbagent.maps.pinned_maps import PinnedMaps
from lbagent.maps.reasons import Reason
from lbagent.model.family import Family
from lbagent.targets.bpf.event_rows import L4, OF_BACKENDS, replied_frontend
from lbagent.targets.bpf.packet_frame import Endpoints, read_frame

if TYPE_CHECKING:
    from types import TracebackType

    from lbagent.maps.event_reader import Event
    from lbagent.maps.layout import PathL4

FRESH_S = 0.1  # what was read so lately is not read again
Ends = tuple[FlowEnd, FlowEnd, "PathL4"]  # client, frontend, protocol


class EventFlows:
    """Looks flows up under pins, which are opened again each time: a change of table sizes replaces the maps."""

    def __init__(self, bpffs: str, wanted: FlowFilter) -> None:
        self._bpffs = bpffs
        self._filter = FlowFilter(state=wanted.state, idle_over_s=wanted.idle_over_s)
        self._opened = ExitStack()
        self._until = 0.0
        self._known: dict[Ends, bool] = {}

    @classmethod
    def of(cls, bpffs: str, wanted: FlowFilter) -> Self | None:
        """Return those for a filter; None if it names neither a state nor an idle time."""
        return None if wanted.state is None and wanted.idle_over_s is None else cls(bpffs, wanted)

    def __enter__(self) -> Self:
        """Return the flows."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the maps."""
        self._opened.close()

    def selects(self, event: Event, *, is_turned: bool = False) -> bool:
        """Return whether the event's flow is in the table, and as the filter has it.

        `is_turned`: it is a reply whose frame has the client as its source and the frontend as its destination. Raises NotFound,
        LayoutMismatch, KernelError.
        """
        if time.monotonic() >= self._until:
            self._open()
        ends = self._ends(event, is_turned=is_turned)
        if ends is None:
            return False
        found = self._known.get(ends)
        if found is None:
            found = self._known[ends] = self._is_selected(*ends)
        return found

    def _open(self) -> None:
        self._opened.close()
        self._known.clear()
        self._maps = self._opened.enter_context(PinnedMaps(self._bpffs))
        self._settings: FlowSettings = flow_settings(self._maps.settings_record())
        now = None if self._filter.idle_over_s is None else ticks_now(self._settings, is_needed=True)
        self._texts = FlowLines(self._maps, self._settings, now, lambda _ident, _frontend: None)
        self._until = time.monotonic() + FRESH_S

    def _is_selected(self, client: FlowEnd, frontend: FlowEnd, l4: PathL4) -> bool:
        raw = find_flow(self._maps, client, frontend, l4, self._settings.seeds)
        test = self._texts.selects(self._filter, Family.of(client.address))
        return raw is not None and (test is None or test(raw))

    def _ends(self, event: Event, *, is_turned: bool) -> Ends | None:
        ends = read_frame(event.frame)
        l4 = L4.get(ends.protocol)
        if l4 is None or ends.source_port is None or ends.destination_port is None or event.reason in OF_BACKENDS:
            return None
        source = FlowEnd(ends.source, ends.source_port)
        destination = FlowEnd(ends.destination, ends.destination_port)
        if event.reason == Reason.FWD_REPLY and not is_turned:
            return self._ends_of_reply(event, ends, destination, l4)
        return source, destination, l4

    def _ends_of_reply(self, event: Event, ends: Endpoints, destination: FlowEnd, l4: PathL4) -> Ends | None:
        frontend = replied_frontend(self._maps, ends, event)
        if frontend is None or ends.family is None:
            return None
        client: FlowEnd | None = destination
        if event.snat_port:
            client = snat_client(
                self._maps, ends.family, event.backend, event.snat_port, self._settings.seeds, frontend.port
            )
        return None if client is None else (client, FlowEnd(frontend.address, frontend.port), l4)
