"""Times as kube-proxy's flags take them: whole seconds, or hours, minutes and seconds like 1h30m.

Source: Go's time.ParseDuration, without parts of a second.
"""

from __future__ import annotations

import re

_PARTS = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII)


def parse_seconds(text: str) -> int:
    """Return the seconds that `7200`, `2h`, `1h30m` or `24h0m0s` stands for. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    parts = _PARTS.fullmatch(text)
    if not text or parts is None:
        raise ValueError(f"{text!r} is not a whole number of seconds, and no time like 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return hours * 3600 + minutes * 60 + seconds
