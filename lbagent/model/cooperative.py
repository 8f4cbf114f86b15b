"""Long work cut into slices: a generator that yields wherever others may have their turn, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Slices = Generator[None, None, T]


def whole(work: Slices[T]) -> T:
    """Do the work in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
