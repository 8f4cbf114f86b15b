"""Finds the known word for a misspelling: for the messages about objects, files and flags."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

CLOSE = 0.75  # difflib's ratio from which one word counts as a misspelling of the other: two letters of four exchanged
MAX_LENGTH = 100  # characters: longer words are not compared


def nearest(word: object, known: Collection[str], close: float = CLOSE) -> str:
    """Return the known word that `word` is a misspelling of; '' if there is none, or if `word` is known itself."""
    if not isinstance(word, str) or word in known or len(word) > MAX_LENGTH:
        return ""
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=close)
    return by_lower[found[0]] if found else ""
