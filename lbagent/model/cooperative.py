"""Long work cut into slices: a generator that yields wherever others may have their turn, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Cooperative = Generator[None, None, T]


def run_whole(work: Cooperative[T]) -> T:
    """Do the work in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
