"""The suite's lines, the list of tests that pass with kube-proxy, and the page with the results."""

from __future__ import annotations

import pytest

from tests.conformance import document
from tests.conformance.results import NOT_APPLICABLE, baseline, read
from tests.lab.netns import LabError

NET = "[sig-network]"
EXPECTED = [f"{NET} Services should serve", f"{NET} DNS should answer"]
GOOD = f"PASS    12 s  {EXPECTED[0]}\nPASS     0 s  {EXPECTED[1]}\n"


def test_a_baseline_has_titles_without_what_does_not_apply() -> None:
    lines = [f"7\t{title}" for title in (*EXPECTED, *NOT_APPLICABLE)]
    assert baseline("# seconds, title\n" + "\n".join(lines) + "\n") == EXPECTED


def test_a_run_in_which_all_pass_is_good() -> None:
    results = read(GOOD + "2 passed, 0 failed\n", EXPECTED)
    assert results.ok
    assert results.seconds == {EXPECTED[0]: 12, EXPECTED[1]: 0}
    assert results.text() == "2 of 2 passed"


def test_a_test_that_fails_is_named_with_its_reason() -> None:
    results = read(
        f"PASS    12 s  {EXPECTED[0]}\nFAIL     3 s  {EXPECTED[1]}\n     timed out\n1 passed, 1 failed\n", EXPECTED
    )
    assert not results.ok
    assert results.failed == {EXPECTED[1]: "timed out"}
    assert results.text() == f"FAIL {EXPECTED[1]}\n     timed out\n1 of 2 passed"


def test_a_test_that_is_not_in_the_baseline_counts_when_it_fails() -> None:
    results = read(GOOD + f"FAIL     3 s  {NET} New\n     why\n2 passed, 1 failed\n", EXPECTED)
    assert not results.ok
    assert len(results.passed) == 2


def test_a_failure_outside_a_test_counts() -> None:
    assert not read(GOOD + "FAIL [SynchronizedBeforeSuite]\n2 passed, 0 failed\n", EXPECTED).ok


def test_what_does_not_apply_may_fail() -> None:
    (title,) = NOT_APPLICABLE
    assert read(GOOD + f"FAIL    43 s  {title}\n     no entry\n2 passed, 1 failed\n", EXPECTED).ok


def test_an_expected_test_that_was_skipped_is_missing() -> None:
    results = read(
        f"PASS    12 s  {EXPECTED[0]}\nSKIP        {EXPECTED[1]}\n     wants more\n1 passed, 0 failed\n", EXPECTED
    )
    assert not results.ok
    assert results.missing == [EXPECTED[1]]


def test_a_suite_that_was_cut_short_is_not_good() -> None:
    assert not read(GOOD, EXPECTED).ok


def test_nothing_expected_is_not_good() -> None:
    assert not read("0 passed, 0 failed\n", []).ok


PAGE = f"before\n{document.BEGIN}{document.HEAD}| process | 1 of 2 | then | a | 3, 6 | x |\n{document.END}after\n"


def test_a_row_takes_the_place_of_the_one_for_the_same_agents() -> None:
    line = document.row("process", read(GOOD + "2 passed, 0 failed\n", EXPECTED), 3, 6, "abc")
    page = document.with_row(PAGE, line)
    assert page == PAGE.replace("| process | 1 of 2 | then | a | 3, 6 | x |\n", line)
    assert "| process | 2 of 2 |" in line
    assert line.endswith("| abc | 3, 6 | - |\n")


def test_another_way_of_running_has_a_row_of_its_own() -> None:
    line = document.row("process, killed each 20 s", read("", EXPECTED), 3, 6, "abc")
    assert document.with_row(PAGE, line) == PAGE.replace(document.END, line + document.END)
    assert f"{EXPECTED[1]} (did not run)<br>{EXPECTED[0]} (did not run)" in line


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(LabError, match="no table"):
        document.with_row("no table here\n", "| a |\n")
