"""The errors of msgspec about values of the wrong shape, as fields.

msgspec reports these as text only, so this is the one place that parses it; tests/textfile/test_shape_errors.py fails if a
version of msgspec changes the text.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from lbagent.textfile.field_path import FieldPath

_PLACE = re.compile(r" - at (?P<key>`key` in )?`(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<key>[^`]*)`")
_WANTED = re.compile(r"Expected `(?P<types>[^`]+)`")


class Fault(Enum):
    """Kinds of errors."""

    UNKNOWN_KEY = auto()
    MISSING_KEY = auto()
    KEY_IS_NO_TEXT = auto()
    WRONG_TYPE = auto()
    OTHER = auto()  # an unknown word, a number out of bounds


class ShapeError(NamedTuple):
    """An error of the value at `path`, or of a key in it.

    The steps of `path` end at a mapping of free keys, which msgspec does not report; it is () for a key that is no text. `key` is
    of UNKNOWN_KEY and MISSING_KEY, `types` of WRONG_TYPE: msgspec's words, the input of value_errors.py. `text` is msgspec's
    message.
    """

    fault: Fault
    path: FieldPath
    text: str
    key: str = ""
    types: tuple[str, ...] = ()


def shape_error(error: msgspec.ValidationError) -> ShapeError:
    """Return the fields of an error of msgspec.convert or of a decoder."""
    text = str(error)
    place = _PLACE.search(text)
    if place and place["key"]:
        return ShapeError(Fault.KEY_IS_NO_TEXT, (), text)
    path: FieldPath = tuple(step[1] or int(step[2]) for step in _STEP.finditer(place["path"] if place else ""))
    if unknown := _UNKNOWN.match(text):
        return ShapeError(Fault.UNKNOWN_KEY, path, text, unknown["key"])
    if missing := _MISSING.match(text):
        return ShapeError(Fault.MISSING_KEY, path, text, missing["key"])
    if wanted := _WANTED.match(text):
        return ShapeError(Fault.WRONG_TYPE, path, text, types=tuple(wanted["types"].split(" | ")))
    return ShapeError(Fault.OTHER, path, text)
