"""Numbers of flows, of all and by a key. Closing flows count only if a filter selects them, flows without a backend never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from lbagent.maps.flow_filter import FlowFilter
from lbagent.maps.flow_layout import FLOW, FlowState
from lbagent.maps.flow_lines import L4_WORDS, STATE_WORDS, FlowLines, address_text
from lbagent.maps.flow_reader import CACHED_ENTRIES, FlowMaps, RawFlow, count_live, raw_flows
from lbagent.model.family import Family

if TYPE_CHECKING:
    from lbagent.maps.socket_flows import SocketFlow

_V = FLOW[Family.IPV4].fields
_STATE, _BACKEND, _NUMBER, _L4 = (_V[name].shift for name in ("state", "backend", "backend_generation", "l4"))
_CLOSING = int(FlowState.CLOSING)
KeyOf = Callable[[RawFlow], object]


def count_flows(maps: FlowMaps, texts: FlowLines, wanted: FlowFilter) -> int:
    """Return how many flows of packets the filter selects. Raises KernelError."""
    if wanted == FlowFilter(families=wanted.families):
        return sum(count_live(maps, family) for family in wanted.families)
    return sum(len(piece) for _, piece in _selected(maps, texts, wanted))


def count_by(
    maps: FlowMaps, texts: FlowLines, wanted: FlowFilter, by: str, sockets: Iterable[SocketFlow]
) -> Counter[str | None]:
    """Return the number of flows by service, backend, client (its address), state or proto. Raises KernelError.

    The key None is for flows whose service or backend is not known, and for sockets without an own address.
    """
    found: Counter[str | None] = Counter()
    for family, piece in _selected(maps, texts, wanted):
        part, text = _keys(texts, family, by)
        for key, number in Counter(map(part, piece)).items():
            found[text(key)] += number
    for each in sockets:
        found[_of_socket(each, texts, by)] += 1
    return found


def _selected(maps: FlowMaps, texts: FlowLines, wanted: FlowFilter) -> Iterator[tuple[Family, list[RawFlow]]]:
    """Yield the flows that count."""
    left_out = _CLOSING if wanted.state is None else -1
    for family in wanted.families:
        select = texts.selects(wanted, family)
        for piece in raw_flows(maps, family, CACHED_ENTRIES):
            live = [raw for raw in piece if raw[6] >> _BACKEND and raw[6] >> _STATE & 3 != left_out]
            yield family, live if select is None else list(filter(select, live))


def _keys(texts: FlowLines, family: Family, by: str) -> tuple[KeyOf, Callable[..., str | None]]:
    """Return the part of a flow by which it is counted, and the text of such a part."""
    if by == "state":
        return lambda raw: raw[6] >> _STATE & 3, lambda state: STATE_WORDS[state]
    if by == "proto":
        return lambda raw: raw[1] >> _L4, lambda l4: L4_WORDS[l4]
    if by == "client":
        return lambda raw: raw[3], address_text
    if by == "backend":
        return lambda raw: raw[6] >> _NUMBER, lambda number: texts.backend(family, number << _NUMBER).text
    return lambda raw: (raw[5], raw[4], raw[1] >> _L4, raw[8]), lambda key: texts.frontend(
        key[0], key[1], key[2] << _L4, key[3]
    )[1]


def _of_socket(each: SocketFlow, texts: FlowLines, by: str) -> str | None:
    keys = {
        "state": STATE_WORDS[each.state],
        "proto": L4_WORDS[each.l4],
        "client": address_text(each.client[0]) if each.client else None,
        "backend": each.backend_text,
        "service": texts.name_of(0, each.frontend_text),
    }
    return keys[by]
