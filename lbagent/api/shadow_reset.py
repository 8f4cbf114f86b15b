"""The request to begin the counts of `shadow report` again."""

from __future__ import annotations

from msgspec import Struct


class ShadowReset(Struct):
    """Whether the counts begin again."""

    reset: bool = True
