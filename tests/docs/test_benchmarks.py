"""The benchmarks' rows: documents, results and the comparison with an older checkout use the same names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench import compare, datapath

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_has_every_row_of_the_results() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    cases = {row["case"] for row in json.loads((ROOT / "bench" / "results.json").read_text())["datapath"]}
    assert not [case for case in cases if not re.search(rf"^\| {re.escape(case)} +\|", text, re.MULTILINE)]
    assert not cases & compare.RENAMED.keys()
    assert compare.RENAMED.items() >= {("packet for nobody", "packet of no service")}  # plain words: an older name
    assert all(f'"{name}"' in Path(datapath.__file__).read_text() for name in compare.RENAMED.values())


def test_a_row_of_an_older_checkout_is_compared_by_its_name_of_now() -> None:
    # plain words: an older name
    before = [{"case": "packet for nobody", "family": 4, "flows": 1, "ours_over_textbook": {"median": 0.5}}]
    after = [{"case": "packet of no service", "family": 4, "flows": 1, "ours_over_textbook": {"median": 0.4}}]
    old, new = compare.rows_of(before), compare.rows_of(after)
    assert old.keys() == new.keys()
    assert "0.800" in compare.table([old], [new])
