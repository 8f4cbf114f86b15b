"""Times as kube-proxy's flags take them."""

from __future__ import annotations

import pytest

from lbagent.config.duration import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("7200", 7200), ("2h", 7200), ("1h30m", 5400), ("24h0m0s", 86400), ("90s", 90), ("5m", 300)],
)
def test_times(text: str, seconds: int) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1.5h", "500ms", "1h 30m", "30m1h", "2x", "h", "٣s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="no time like 1h30m"):
        parse_seconds(text)
