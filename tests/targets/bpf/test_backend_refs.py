"""The reference counts of backends: what a dictionary would hold, and how many have which count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lbagent.targets.bpf.record_array import BackendRefs

IDS = 40
counts = st.sampled_from([0, 1, 1 << 24, (1 << 120) + 5])
batches = st.lists(st.dictionaries(st.integers(0, IDS + 5), counts, max_size=IDS), max_size=6)


@given(batches, st.lists(st.tuples(st.integers(0, IDS + 5), counts), max_size=6))
def test_it_holds_what_a_dictionary_does(replaced: list[dict[int, int]], single: list[tuple[int, int]]) -> None:
    refs, known = BackendRefs(IDS), {}
    for batch in replaced:
        refs.replace(batch)
        known |= batch
    for ident, value in single:
        refs[ident] = value
        known[ident] = value
    known = {ident: value for ident, value in known.items() if value}
    assert dict(refs) == known
    assert len(refs) == len(known)
    assert refs.numbers() == Counter(known.values())
    assert all((ident in refs) == (ident in known) for ident in range(IDS + 6))
    assert all(ident < refs.end for ident in known)


def test_ids_that_follow_each_other_are_replaced_at_once() -> None:
    refs = BackendRefs(IDS)
    refs.replace(dict.fromkeys(range(1, 30), 7))
    refs.replace({ident: 0 if ident == 3 else 8 for ident in range(2, 6)})
    assert 3 not in refs
    assert (refs.get(1), refs.get(2), refs.get(5), len(refs)) == (7, 8, 8, 28)
