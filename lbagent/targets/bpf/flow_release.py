"""TCP flows that end soon leave the flow table before they expire: another data plane has what their clients' ports send next.

A client may open its next connection from the port of one that has closed, and it sends a SYN again that no backend has answered.
Both SYNs belong to the other data plane; what follows them would meet the old entry. While no frontend takes new flows, nothing is
inserted into the table, so that one store frees an entry.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from lbagent.maps.flow_layout import (
    FLOW,
    HANDSHAKE_ANSWERED,
    HANDSHAKE_OLDER,
    OWNER_HELD_SHIFT,
    FlowState,
)
from lbagent.maps.flow_reader import PIECE_ENTRIES, spilled_flows
from lbagent.maps.layout import PathL4, is_zero
from lbagent.maps.lbmaps import LBMaps
from lbagent.maps.map_names import family_map
from lbagent.model.family import Family


class EndingFlow(NamedTuple):
    """An entry, and the words by which it is recognised."""

    family: Family
    offset: int
    words: tuple[int, ...]


class LeftFlows(NamedTuple):
    """What the flow tables hold."""

    open: int  # flows that may send more packets
    closed: frozenset[EndingFlow]  # connections that have closed
    unanswered: frozenset[EndingFlow]  # a SYN, and no answer


def left_flows(maps: LBMaps) -> LeftFlows:
    """Read the flow tables. Blocks: some 20 ms for an empty table of a million. Raises KernelError."""
    count, closed, unanswered = 0, set(), set()
    for family in Family:
        for ending, state, is_answered in _held(maps, family):
            if state is FlowState.CLOSING:
                closed.add(ending)
            elif state is FlowState.NEW and not is_answered:
                unanswered.add(ending)
            else:
                count += 1
        count += sum(flow.is_live for flow in spilled_flows(maps, family))
    return LeftFlows(count, frozenset(closed), frozenset(unanswered))


def release(maps: LBMaps, flows: frozenset[EndingFlow]) -> None:
    """Free these entries. Raises KernelError."""
    for family in Family:
        generation = FLOW[family].fields["generation"].mask
        words = [
            (each.offset, (each.words[0] & generation).to_bytes(8, sys.byteorder))
            for each in flows
            if each.family is family
        ]
        if words:
            maps.store(family_map(family, "flow"), words)


def _held(maps: LBMaps, family: Family) -> Iterator[tuple[EndingFlow, FlowState, bool]]:
    """Yield entries, the states of their flows, and whether a backend has answered. What is not TCP may continue."""
    record, name = FLOW[family], family_map(family, "flow")
    state, l4, hop, backend = (record.fields[field] for field in ("state", "l4", "client_hop", "backend"))
    entries, step = maps.specs[name].value_size // record.size, record.words
    for first in range(0, entries, PIECE_ENTRIES):
        length = min(PIECE_ENTRIES, entries - first) * record.size
        with maps.window(name, first * record.size, length) as view:
            piece = bytes(view)
        if is_zero(piece):
            continue
        words = memoryview(piece).cast("Q")
        for number in [at for at, owner in enumerate(words[::step].tolist()) if owner >> OWNER_HELD_SHIFT]:
            entry = tuple(words[number * step : (number + 1) * step])
            ending = EndingFlow(family, (first + number) * record.size, entry)
            if l4.of(entry[0]) != PathL4.TCP:
                yield ending, FlowState.ESTABLISHED, True
            elif not backend.of(entry[backend.word]):
                yield ending, FlowState.CLOSING, True
            else:
                is_answered = bool(hop.of(entry[hop.word]) & (HANDSHAKE_ANSWERED | HANDSHAKE_OLDER))
                yield ending, FlowState(state.of(entry[state.word])), is_answered
