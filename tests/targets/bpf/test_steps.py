"""Entries of a step, one by one and many at a time."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lbagent.maps.layout import U32
from lbagent.targets.bpf.replay import parts_of
from lbagent.targets.bpf.steps import Phase, Steps


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30, unique=True), st.data())
def test_runs_are_the_entries_in_order(idents, data):
    step = Steps().at(Phase.PATH_IN, "lb4_path")
    cut = data.draw(st.integers(0, len(idents)))
    for ident in idents[:cut]:
        step.add(ident, U32.pack(ident), bytes((ident,)) * 16)
    rest = idents[cut:]
    step.extend(rest, struct.pack(f"={len(rest)}I", *rest), b"".join(bytes((ident,)) * 16 for ident in rest))
    start = data.draw(st.integers(0, len(idents) - 1))
    stop = data.draw(st.integers(start + 1, len(idents)))
    runs = list(step.runs(start, stop))
    found = [(first + n, values[n * 16 : n * 16 + 16]) for first, values in runs for n in range(len(values) // 16)]
    assert found == [(ident, bytes((ident,)) * 16) for ident in idents[start:stop]]
    ends = [(first, first + len(values) // 16) for first, values in runs]
    assert all(end != first for (_, end), (first, _) in pairwise(ends)), "a run is as long as it can be"


def test_parts_of_records():
    records = bytes(range(128))
    assert parts_of(records, 16, 8, 8) == b"".join(records[at + 8 : at + 16] for at in range(0, 128, 16))
    assert parts_of(records, 64, 0, 32) == records[:32] + records[64:96]
    assert parts_of(records, 64, 16, 16) == records[16:32] + records[80:96]
