"""README: rows of one line, and a chart of the figures that were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.docs import charts

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LONGEST_CELL = 120
PRODUCTS = ["lbagent", "kube-proxy", "Cilium", "Katran", "MetalLB", "HAProxy"]


def cells() -> list[list[str]]:
    rows = [line for line in README.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_no_cell_is_longer_than_a_line() -> None:
    assert [cell for row in cells() for cell in row if len(cell) > LONGEST_CELL] == []


def test_each_product_has_a_mark_in_each_row_of_the_comparison() -> None:
    rows = cells()
    at = rows.index(["", *PRODUCTS])
    marks = [row for row in rows[at + 2 :] if len(row) == len(PRODUCTS) + 1]
    assert len(marks) > 8
    assert [row for row in marks if not all(re.fullmatch(r"✓( \(\w+\))?|–", cell) for cell in row[1:])] == []
    assert [row[0] for row in rows if len(row) == 3 and row[0] in PRODUCTS] == PRODUCTS[1:]


def test_the_chart_is_that_of_the_results() -> None:
    """When this fails: `make charts`."""
    results = json.loads(charts.RESULTS.read_text())
    assert charts.CHART.read_text() == charts.chart(results)
    assert f"]({charts.CHART.relative_to(ROOT)})" in README


def test_a_chart_is_well_formed_and_its_longest_bar_fits() -> None:
    panel = charts.Panel("a & b", "ms", (("other <1>", 12000.5), (charts.OURS, 1.625), ("none", 0.0)))
    root = ET.fromstring(charts.svg([panel], "a note"))
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a & b", "other <1>", "12,000 ms", "lbagent", "1.62 ms", "none", "0.00 ms", "a note"]
    bars = [float(each.get("width", "")) for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars == [charts.WIDTH - charts.NAMES - charts.END, 1.0, 1.0]
