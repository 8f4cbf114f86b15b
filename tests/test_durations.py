"""Times as operators write them, in each of the languages."""

from __future__ import annotations

import pytest

from lbagent.durations import DurationSyntax, parse_duration, parse_whole_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("7200", 7200), ("2h", 7200), ("1h30m", 5400), ("24h0m0s", 86400), ("90s", 90), ("5m", 300)],
)
def test_times_of_kube_proxy_s_flags(text: str, seconds: int) -> None:
    assert parse_whole_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1.5h", "500ms", "1h 30m", "30m1h", "2x", "h", "٣s"])
def test_what_is_no_time_of_such_a_flag(text: str) -> None:
    with pytest.raises(ValueError, match="no time like 1h30m"):
        parse_whole_seconds(text)


@pytest.mark.parametrize(
    ("text", "seconds", "of_one_part"),
    [("300ms", 0.3, True), ("2s", 2.0, True), ("1h", 3600.0, True), ("1m30s", 90.0, False), ("1.5s", 1.5, False)],
)
def test_times_with_units(text: str, seconds: float, of_one_part: bool) -> None:
    """An option takes parts and fractions, a field of a file one number with a unit."""
    assert parse_duration(text) == seconds
    if of_one_part:
        assert parse_duration(text, DurationSyntax.ONE_PART) == seconds
    else:
        with pytest.raises(ValueError, match="is no time like 2s, 300ms or 1h"):
            parse_duration(text, DurationSyntax.ONE_PART)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1..5s", "1 s", "1d", "1.s", "5m s"])
@pytest.mark.parametrize("syntax", [DurationSyntax.PARTS, DurationSyntax.ONE_PART])
def test_what_is_no_time_with_units(text: str, syntax: DurationSyntax) -> None:
    with pytest.raises(ValueError, match="time like"):
        parse_duration(text, syntax)
