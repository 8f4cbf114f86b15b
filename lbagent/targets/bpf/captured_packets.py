"""The packets of a capture: which ones the filter selects, and what is known of them.

What a row has beside time, flags and length is the same for the packets of a flow with one verdict. It is made once for them:
a row takes longer than the other steps together.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from lbagent.maps.event_reader import Event
from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.reasons import Reason
from lbagent.targets.bpf.capture_blocks import CaptureBlocks, options_of
from lbagent.targets.bpf.event_flows import EventFlows
from lbagent.targets.bpf.event_rows import EventRows, Row, text_line
from lbagent.targets.bpf.packet_frame import PROTOCOLS, Tuple, flow_bytes, make_frame, read_frame
from lbagent.targets.bpf.packet_pairs import PacketPair

MAX_KEPT = 1 << 16  # verdicts of flows
STACK = "stack"  # the device of a packet that is handed to this node's stack
_BALANCED = frozenset(PROTOCOLS.values())
Key = tuple[object, ...]


class Taken(NamedTuple):
    """What the packets of a flow with one verdict have in common."""

    row: Row
    arrived: bytes  # options of the packet as it arrived, in a pcapng file
    left: bytes  # as it left
    out: str  # device by which it left; '': it did not


class CapturedPackets:
    """The packets that the filter selects. `rows` has the names of Services."""

    def __init__(self, rows: EventRows, wanted: FlowFilter, flows: EventFlows | None = None) -> None:
        """`flows`: those that the filter selects by their state or age."""
        self._rows, self._wanted, self._flows = rows, wanted, flows
        self._known: dict[Key, Taken | None] = {}

    def forget(self) -> None:
        """Make rows again: Services may have other names."""
        self._known.clear()

    def taken(self, pair: PacketPair) -> Taken | None:
        """Return what is known of a packet; None if the filter does not select it. Raises as EventFlows.selects()."""
        found = self._found(pair)
        if found is None or self._flows is None:
            return found
        seen = _as_client_sent(pair)
        return found if self._flows.selects(seen, is_turned=seen is not pair.arrived) else None

    def _found(self, pair: PacketPair) -> Taken | None:
        key = _key(pair)
        if key is None:
            return self._made(pair)
        try:
            return self._known[key]
        except KeyError:
            pass
        if len(self._known) >= MAX_KEPT:
            self._known.clear()
        found = self._known[key] = self._made(pair)
        return found

    def line(self, pair: PacketPair, taken: Taken) -> str:
        """Return a packet for people: before, then after the load balancer."""
        row = self._rows.row(pair.arrived) | {key: taken.row[key] for key in ("service", "frontend")}
        if pair.arrived.reason == Reason.FWD_REPLY:
            row |= {"backend": None, "snat": None}  # they are in its addresses
        text = text_line(row)
        if pair.left is None:
            return text
        after = self._rows.row(pair.left)
        return f"{text} => {after['source']} > {after['destination']} by {taken.out}"

    def _made(self, pair: PacketPair) -> Taken | None:
        seen = _as_client_sent(pair)
        if not self._rows.is_selected(self._wanted, seen):
            return None
        row = self._rows.row(pair.arrived)
        if seen is not pair.arrived:
            reply = self._rows.row(seen)
            row |= {key: reply[key] for key in ("service", "frontend")}
        out = ""
        if pair.left is not None:
            out = self._rows.row(pair.left)["device"] if pair.left.device else STACK
        return Taken(row, options_of(row), options_of(row, leaves=True), out)


def add_blocks(made: list[bytes], blocks: CaptureBlocks, pair: PacketPair, taken: Taken) -> None:
    """Add the blocks of a packet in a pcapng file to `made`: one or two packets there."""
    blocks.add(made, pair.arrived, taken.row["device"], taken.arrived)
    if pair.left is not None:
        blocks.add(made, pair.left, taken.out, taken.left)


def _as_client_sent(pair: PacketPair) -> Event:
    """Return the event by which a filter selects: of a reply one whose source is the client, and whose destination the frontend."""
    arrived, left = pair
    if left is None or arrived.reason != Reason.FWD_REPLY:
        return arrived
    ends = read_frame(left.frame)
    if ends.protocol not in _BALANCED or ends.source_port is None or ends.destination_port is None:
        return arrived
    turned = Tuple(ends.protocol, ends.destination, ends.destination_port, ends.source, ends.source_port)
    return replace(arrived, frame=make_frame(turned, bytes(12)))


def _key(pair: PacketPair) -> Key | None:
    """Return what decides about selection and row; None for frames that need more than fixed places."""
    event, left = pair
    ends = flow_bytes(event.frame)
    if ends is None:
        return None
    common = (
        ends, event.reason, event.backend, event.service, event.snat_port, event.device, event.hook, event.generation,
    )  # fmt: skip
    if left is None:
        return common
    after = flow_bytes(left.frame)
    return None if after is None else (*common, after, left.device)
