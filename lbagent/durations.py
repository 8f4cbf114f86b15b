"""Times as operators write them: `30s`, `1m30s`, `500ms`. Each of the languages that lbagent accepts is a row of one table."""

from __future__ import annotations

import re
from enum import Enum

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9.]+)(ms|s|m|h)", re.ASCII)


class DurationSyntax(Enum):
    """Texts that are times: a pattern, and the message about a text that does not match."""

    PARTS = (
        r"([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h))+",
        "{!r} is not a time like 30s, 2m or 500ms",
    )
    ONE_PART = (r"[0-9]{1,9}(ms|s|m|h)", "{!r} is no time like 2s, 300ms or 1h")
    # As kube-proxy's flags take them. Source: Go's time.ParseDuration, without parts of a second; a number alone is seconds.
    WHOLE_SECONDS = (
        r"[0-9]+|(?=.)([0-9]{1,6}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?",
        "{!r} is not a whole number of seconds, and no time like 1h30m",
    )

    def __init__(self, pattern: str, problem: str) -> None:
        self.pattern = re.compile(pattern, re.ASCII)
        self.problem = problem


def parse_duration(text: str, syntax: DurationSyntax = DurationSyntax.PARTS) -> float:
    """Return the seconds of a text. Raises ValueError with the problem of the syntax."""
    if syntax.pattern.fullmatch(text) is None:
        raise ValueError(syntax.problem.format(text))
    if text.isdecimal():
        return int(text)
    return sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(text))


def parse_whole_seconds(text: str) -> int:
    """Return the seconds of `7200`, `2h`, `1h30m` or `24h0m0s`. Raises ValueError."""
    return int(parse_duration(text, DurationSyntax.WHOLE_SECONDS))
