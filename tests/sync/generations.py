"""A row of the history."""

from __future__ import annotations

from lbagent.sync.generation_history import PastGeneration


def generation(number: int, cause: str = "Service shop/web") -> PastGeneration:
    """Return a generation of one changed frontend."""
    return PastGeneration(
        generation=number,
        time="2026-11-27T04:28:45.123Z",
        cause=cause,
        added=0,
        changed=1,
        removed=0,
        writes=3,
        duration_ms=0.25,
        frontends=["10.96.0.10:80/TCP"],
    )
