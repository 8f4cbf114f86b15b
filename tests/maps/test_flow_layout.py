"""The bits of flow entries, SNAT slots and spill rows: disjoint, of the sizes that the maps have."""

from __future__ import annotations

import pytest

from lbagent.maps import flow_layout, layout
from lbagent.maps.flow_layout import FLOW, SNAT, SPILL_KEY_WORDS, SPILL_VALUE, WordRecord
from lbagent.model.family import Family

RECORDS = [*FLOW.values(), *SNAT.values(), SPILL_VALUE]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_fields_are_disjoint_and_inside(record: WordRecord) -> None:
    used = [0] * record.words
    for name, field in record.fields.items():
        assert field.shift + field.width <= 64, name
        assert not used[field.word] & field.mask, name
        used[field.word] |= field.mask


def test_sizes_are_those_of_the_maps() -> None:
    assert (layout.FLOW4_SIZE, layout.FLOW6_SIZE, layout.SNAT4_SIZE, layout.SNAT6_SIZE) == (32, 64, 16, 32)
    assert (layout.SPILL4_KEY, layout.SPILL6_KEY, layout.SPILL_VALUE) == (16, 40, 16)
    assert (FLOW[Family.IPV4].size, FLOW[Family.IPV6].size) == (layout.FLOW4_SIZE, layout.FLOW6_SIZE)
    assert (SNAT[Family.IPV4].size, SNAT[Family.IPV6].size) == (layout.SNAT4_SIZE, layout.SNAT6_SIZE)
    assert (8 * SPILL_KEY_WORDS[Family.IPV4], 8 * SPILL_KEY_WORDS[Family.IPV6]) == (
        layout.SPILL4_KEY,
        layout.SPILL6_KEY,
    )
    assert SPILL_VALUE.size == layout.SPILL_VALUE


def test_the_bits_of_layout_1() -> None:
    """Tables of an earlier program stay in use over an upgrade: fields must not move without a new layout number."""
    assert flow_layout.FLOW_LAYOUT == 1
    four, six = FLOW[Family.IPV4].fields, FLOW[Family.IPV6].fields
    assert four["backend"] == (2, 44, 20)
    assert four["forward"] == (2, 20, 16)
    assert four["state"] == (2, 16, 2)
    assert four["service"] == (3, 32, 16)
    assert six["client_port"] == (0, 48, 16)
    assert six["backend"] == (5, 44, 20)
    assert six["last_seen"] == (6, 0, 16)
