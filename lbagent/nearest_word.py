"""Finds the known word that is most similar to an unknown one: for messages about objects, files and flags."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

CLOSE = 0.75  # difflib's minimum ratio of a misspelling: two of four letters exchanged
MAX_LENGTH = 100  # characters: longer words are not compared


def nearest(word: object, known: Collection[str], close: float = CLOSE) -> str:
    """Return the known word of which `word` is a misspelling; '' if there is none, or if `word` is known itself."""
    if not isinstance(word, str) or word in known or len(word) > MAX_LENGTH:
        return ""
    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=close)
    return by_lower[found[0]] if found else ""
