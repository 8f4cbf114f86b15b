"""Times as operators write them: `30s`, `1m30s`, `500ms`."""

from __future__ import annotations

import re

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return the seconds of one or more numbers with units (ms, s, m, h). Raises ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a time like 30s, 2m or 500ms")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)
