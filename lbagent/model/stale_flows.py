"""The word `lbagent.io/stale-flows` of a Service: what happens to flows whose endpoint is gone from its slices. Pure.

A number of seconds says it all: RESET 0, `drain=SECONDS` so many, KEEP without end.
"""

from __future__ import annotations

import re

RESET = 0
KEEP = 0xFFFFFFFF
MAX_DRAIN_S = 999_999_999
_WORD = re.compile(r"keep|reset|drain=([0-9]{1,9})", re.ASCII)


def parse_stale_flows(text: str) -> int | None:
    """Return for how many seconds flows go on to an endpoint that is gone; None for a text that is none of the words."""
    found = _WORD.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None:
        return int(found[1])
    return KEEP if text == "keep" else RESET


def stale_flows_text(seconds: int) -> str:
    """Return the word."""
    return {RESET: "reset", KEEP: "keep"}.get(seconds, f"drain={seconds}")
