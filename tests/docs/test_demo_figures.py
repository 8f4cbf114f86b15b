"""The figures of `make demo-apilb` from its kubelets' records: the part of examples/demo_apilb that needs no network."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "demo_apilb"


@pytest.fixture(scope="module")
def demo() -> Any:
    """The module of the example, which is not part of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.delitem(sys.modules, "figures", raising=False)
        module = importlib.import_module("figures")
        patch.delitem(sys.modules, "figures")
    return module


def answer(at: float, server: str, asked: float | None = None) -> dict[str, Any]:
    return {
        "what": "answer",
        "at": at,
        "began": at - 0.1,
        "asked": at - 0.1 if asked is None else asked,
        "server": server,
    }


def opened(at: float, watch: int, server: str, silent_s: float = 0.0) -> dict[str, Any]:
    return {"what": "open", "at": at, "watch": watch, "server": server, "silent_s": silent_s}


FAILED = {"what": "failed", "at": 5.5, "began": 5.4, "error": "ConnectionRefusedError: a"}
RECORDS = [
    opened(1.0, 0, "a"), opened(1.1, 1, "b"), opened(1.2, 2, "a"), answer(2.0, "a"), answer(5.0, "b"),
    FAILED, answer(6.5, "b", asked=5.4), opened(7.0, 0, "b", 1.25), opened(7.5, 2, "a", 0.5), answer(9.0, "b"),
]  # fmt: skip


def test_figures_are_those_of_the_span(demo: Any) -> None:
    found = demo.figures(RECORDS, 4.5, 8.0)
    assert found.answered == {"b": 2}
    assert found.failures == (FAILED,)
    assert found.slowest_s == pytest.approx(1.1)
    assert (found.opened_again, found.longest_silence_s) == (2, 1.25)
    assert found.cells == ("2", "1", "1.50 s", "2", "1.25 s")


@pytest.mark.parametrize(
    ("since", "until", "gap_s"), [(4.0, 7.0, 1.5), (2.5, 7.0, 2.5), (4.5, 8.5, 2.0), (10.0, 13.0, 3.0)]
)
def test_a_gap_counts_from_the_begin_and_to_the_end(demo: Any, since: float, until: float, gap_s: float) -> None:
    assert demo.figures(RECORDS, since, until).longest_gap_s == gap_s


def test_the_first_connection_of_a_watch_is_none_that_had_to_be_made_again(demo: Any) -> None:
    found = demo.figures(RECORDS, 0.0, 2.0)
    assert (found.opened_again, found.cells[-1]) == (0, "-")


def test_a_watch_is_stranded_until_another_server_has_it(demo: Any) -> None:
    assert demo.watching(RECORDS, 5.0) == {0: "a", 1: "b", 2: "a"}
    assert demo.stranded(RECORDS[:6], "a", 5.0) == {0, 2}
    assert demo.stranded(RECORDS, "a", 5.0) == {2}  # it was opened again at the same server
    assert demo.stranded(RECORDS, "b", 5.0) == {1}


def test_a_table_has_its_columns_below_one_another(demo: Any) -> None:
    head, row = demo.table([("native mode", "1", "22", "3", "4", "5")]).splitlines()
    assert row.startswith("native mode  ")
    for name, cell in zip(demo.HEAD, ("1", "22", "3", "4", "5"), strict=True):
        assert head.index(name) + len(name) == row.index(cell) + len(cell)
