"""Which flows are left to bpf, and which leave the flow table before they expire."""

from __future__ import annotations

import pytest

from lbagent.maps.flow_layout import HANDSHAKE_ANSWERED
from lbagent.maps.flow_reader import flows
from lbagent.model.family import Family
from lbagent.targets.bpf.flow_release import left_flows, release
from tests.maps.test_flow_reader import FAMILIES, entry, maps_with

NEW, ESTABLISHED, CLOSING = 0, 1, 2
UDP = 1


@FAMILIES
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"state": ESTABLISHED}, (1, 0, 0)),
        ({"state": CLOSING}, (0, 1, 0)),
        ({"state": ESTABLISHED, "backend": 0}, (0, 1, 0)),
        ({"state": NEW}, (0, 0, 1)),
        ({"state": NEW, "client_hop": HANDSHAKE_ANSWERED | 7}, (1, 0, 0)),
        ({"state": NEW, "l4": UDP}, (1, 0, 0)),
    ],
)
def test_what_may_still_send(family: Family, values: dict[str, int], wanted: tuple[int, int, int]) -> None:
    found = left_flows(maps_with(family, {17001: entry(family, **values)}))
    assert (found.open, len(found.closed), len(found.unanswered)) == wanted


@FAMILIES
def test_a_released_entry_is_free_and_no_other_one_is(family: Family) -> None:
    maps = maps_with(family, {5: entry(family, 1), 6: entry(family, 2, state=CLOSING), 20000: entry(family, 3)})
    release(maps, left_flows(maps).closed)
    left = [int.from_bytes(flow.client, "little") for some in flows(maps, family) for flow in some]
    assert left == [1, 3]
    assert left_flows(maps).closed == frozenset()
