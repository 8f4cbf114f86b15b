"""Sentences about wrong YAML and about values of a wrong type: the same for objects and for the configuration."""

from __future__ import annotations

from typing import Any

MAX_SHOWN = 60  # characters of a wrong value that a message shows
# msgspec's words for types -> the operator's word for a value of that type
_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a mapping",
}


def wrong_type(value: Any, wanted: str) -> str:
    """Return the sentence about a value that is not of a wanted type: a word of msgspec (int, str, ...), or any other noun.

    A plain value is shown: `'http' is not a whole number`. A container is only named: `a mapping is wanted, not a list`.
    """
    noun = _WANTED.get(wanted, wanted)
    if isinstance(value, dict | list | tuple):
        return f"{noun} is wanted, not {'a mapping' if isinstance(value, dict) else 'a list'}"
    return f"{shown(value)} is not {noun}"


def shown(value: Any) -> str:
    """Return a plain value as written in YAML, shortened: texts in quotes, so that '80' is not taken for 80."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def tab_problem(text: str, line: int) -> str:
    """Return the problem of a line (1-based) that is not YAML because of a tab, '' for another reason."""
    lines = text.splitlines()
    words = lines[line - 1] if line <= len(lines) else ""
    indent = words[: len(words) - len(words.lstrip())]
    return "the indentation has a tab; YAML takes spaces alone" if "\t" in indent else ""
