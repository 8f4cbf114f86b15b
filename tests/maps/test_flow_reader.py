"""Flows are read as flow_layout.py describes them, torn entries are not returned, and counts leave closing flows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps.flow_layout import FLOW, REPLY_MARK, SPILL_VALUE, FlowState
from lbagent.maps.flow_reader import MAX_READS, PIECE_ENTRIES, count, flows, totals
from lbagent.maps.layout import PathL4
from lbagent.maps.map_names import family_map
from lbagent.maps.memory_maps import MemoryMaps
from lbagent.model.family import Family
from tests.maps.flow_table import ENTRIES, PORT, entry, maps_with, swapped, words

FAMILIES = pytest.mark.parametrize("family", Family, ids=str)


def read(maps: MemoryMaps, family: Family) -> list:
    return [flow for piece in flows(maps, family) for flow in piece]


@pytest.mark.long
@FAMILIES
@given(data=st.data())
def test_each_field_is_where_the_layout_has_it(family: Family, data: st.DataObject) -> None:
    record = FLOW[family]
    values = {name: data.draw(st.integers(0, (1 << field.width) - 1), name) for name, field in record.fields.items()}
    values["value_generation"] = values["generation"]
    if family is Family.IPV4:
        values["vip_generation"] = values["generation"]
    values["client_port"] |= 1  # no free entry
    at = data.draw(st.sampled_from((0, PIECE_ENTRIES - 1, PIECE_ENTRIES, ENTRIES - 1)))
    (found,) = read(maps_with(family, {at: words(record, **values)}), family)
    half = family.address_bytes if family is Family.IPV4 else 8
    ends = (
        values[name].to_bytes(8, "little") if family is Family.IPV6 else b""
        for name in ("client_end", "vip_end")
        if name in values
    )
    client_end, vip_end = ends if family is Family.IPV6 else (b"", b"")
    assert found.client == values["client"].to_bytes(half, "little") + client_end
    assert found.vip == values["vip"].to_bytes(half, "little") + vip_end
    assert (found.client_port, found.vip_port) == (swapped(values["client_port"]), swapped(values["vip_port"]))
    assert (found.l4, found.state, found.fin) == (PathL4(values["l4"]), FlowState(values["state"]), values["fin"])
    assert (found.service, found.backend, found.backend_generation) == (
        values["service"], values["backend"], values["backend_generation"],
    )  # fmt: skip
    has_port = values["forward"] & 0xFF
    assert found.snat_port == (swapped(values["forward"]) if has_port else 0)
    assert found.mode == (1 if has_port else values["forward"] >> 8)
    assert found.last_seen == values["last_seen"]
    hop = values["client_hop"]
    assert found.client_hop == (0 if hop >> 14 else hop & 0xFFF)


@FAMILIES
def test_free_and_busy_entries_are_no_flows(family: Family) -> None:
    busy = [0x8000 | 5] + [0] * (FLOW[family].words - 1)
    maps = maps_with(family, {0: busy, 3: entry(family), 5: [7] + [0] * (FLOW[family].words - 1)})
    assert len(read(maps, family)) == 1
    assert count(maps, family) == Counter({7: 1})


@FAMILIES
def test_totals_by_frontend_and_backend(family: Family) -> None:
    torn = entry(family, 9, service=3)
    torn[0] ^= 1  # the owner word is of another flow already
    maps = maps_with(
        family,
        {
            0: entry(family, 1, service=3, backend=7),
            1: entry(family, 2, service=3, backend=7, state=0),
            2: entry(family, 3, service=3, backend=8, l4=1),
            3: entry(family, 4, service=3, backend=7, state=int(FlowState.CLOSING)),
            4: entry(family, 5, service=3, backend=0),
            5: torn,
            PIECE_ENTRIES + 1: entry(family, 6, service=0xFFFF, backend=0xFFFFF, state=3),
        },
    )
    assert totals(maps, family) == {
        (3, 7, PathL4.TCP): 2,
        (3, 8, PathL4.UDP): 1,
        (0xFFFF, 0xFFFFF, PathL4.TCP): 1,
    }


class Changing(MemoryMaps):
    """Maps in which an entry changes at each read, `changes` times: the words that were read are of two flows."""

    changes = 0
    family = Family.IPV4

    @contextmanager
    def window(self, map_name: str, offset: int, length: int) -> Iterator[memoryview]:
        with super().window(map_name, offset, length) as view:
            yield ChangingView(self, view) if map_name == family_map(self.family, "flow") and self.changes else view


class ChangingView:
    """A memoryview whose bytes are copied while another CPU writes: the entry at position 3 is torn as long as `maps.changes` lasts."""

    def __init__(self, maps: Changing, view: memoryview) -> None:
        self.maps, self.view = maps, view

    def __getitem__(self, key: slice) -> ChangingView:
        return ChangingView(self.maps, self.view[key])

    def __bytes__(self) -> bytes:
        data = bytes(self.view)
        size = FLOW[self.maps.family].size
        at = 3 * size if len(data) > 3 * size else 0
        if self.maps.changes and any(data[at : at + size]):
            self.maps.changes -= 1
            value = at + 8 * FLOW[self.maps.family].fields["backend"].word
            return data[:value] + bytes((data[value] ^ 1,)) + data[value + 1 :]  # another generation
        return data

    def cast(self, kind: str) -> memoryview:
        return self.view.cast(kind)


@FAMILIES
@pytest.mark.parametrize(("changes", "flows_read"), [(1, 2), (MAX_READS, 2), (MAX_READS + 1, 1)])
def test_an_entry_that_changes_is_read_again_and_never_returned_torn(
    family: Family, changes: int, flows_read: int
) -> None:
    maps = maps_with(family, {3: entry(family, 1), 9: entry(family, 2)})
    maps.__class__ = Changing
    maps.family, maps.changes = family, changes
    found = read(maps, family)
    assert len(found) == flows_read
    assert {flow.backend for flow in found} == {7}


def test_an_ipv6_entry_whose_addresses_changed_is_not_returned() -> None:
    """All words carry one generation, but the owner word is another one after the addresses were read."""
    maps = maps_with(Family.IPV6, {0: entry(Family.IPV6)})
    with maps.window("lb6_flow", 0, FLOW[Family.IPV6].size) as view:
        stale = bytes(view)
        view.cast("Q")[0] ^= 1 << 48  # another client port

        class Stale:
            def __bytes__(self) -> bytes:
                return stale

            def cast(self, kind: str) -> memoryview:
                return view.cast(kind)

        from lbagent.maps.flow_reader import _decode_once

        assert _decode_once(Family.IPV6, Stale()) == ([], [0])


@FAMILIES
def test_counts_by_backend_leave_closing_flows_out(family: Family) -> None:
    entries = {
        1: entry(family, 1, backend=7),
        2: entry(family, 2, backend=7, state=FlowState.CLOSING),
        3: entry(family, 3, backend=8, state=FlowState.NEW),
        PIECE_ENTRIES + 1: entry(family, 4, backend=7, state=FlowState.MID),
        5: entry(family, 5, backend=0),  # it lost its backend
    }
    maps = maps_with(family, entries)
    assert count(maps, family) == Counter({7: 2, 8: 1})
    live = Counter(flow.backend for flow in read(maps, family) if flow.is_live)
    assert live == count(maps, family)


@FAMILIES
def test_spilled_flows_and_not_their_reply_rows(family: Family) -> None:
    maps = maps_with(family, {})
    key_words = entry(family, 1)[: 2 if family is Family.IPV4 else 5]
    key_words = [
        word & ~0x3FFF if number == 0 or family is Family.IPV4 else word for number, word in enumerate(key_words)
    ]
    value = words(SPILL_VALUE, state=1, backend=7, service=3)
    reply = list(key_words)
    reply[1 if family is Family.IPV4 else 0] |= REPLY_MARK
    rows = [(packed(key_words), packed(value)), (packed(reply), packed(value))]
    maps.put_many(family_map(family, "spill"), rows)
    (found,) = read(maps, family)
    assert (found.spilled, found.backend, found.service, found.client_port) == (True, 7, 3, PORT)
    assert count(maps, family) == Counter({7: 1})


def packed(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)
