"""Convert parsed objects to Kubernetes' shapes (wire.py), leaving out only the parts that are of a wrong type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from lbagent.textfile.field_path import FieldPath, path_text
from lbagent.textfile.shape_errors import Fault, ShapeError, shape_error
from lbagent.value_errors import wrong_type

T = TypeVar("T")
_MAX_FAULTS = 100  # an object with more wrong parts is left out


def convert_leniently(raw: Any, kind: type[T], complain: Callable[[FieldPath, str, str, Any], None]) -> T | None:
    """Convert a parsed object without its parts of a wrong type; None if nothing is left.

    `complain(path, problem, kept, removed part)` is called for each part. `raw` is changed: a wrong list item becomes
    null (so that the items after it keep their index), a wrong field is removed.
    """
    for _ in range(_MAX_FAULTS):
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            if not _take_out(raw, shape_error(error), complain):
                return None
    complain((), f"more than {_MAX_FAULTS} fields of a wrong type", "the object is left out", None)
    return None


def _take_out(raw: Any, error: ShapeError, complain: Callable[[FieldPath, str, str, Any], None]) -> bool:
    path = error.path
    if not path:
        complain((), _problem(error, raw), "the object is left out", None)
        return False
    indexes = [at for at, step in enumerate(path) if isinstance(step, int)]
    cut = indexes[-1] + 1 if indexes else len(path)
    holder: Any = raw
    for step in path[: cut - 1]:
        holder = holder[step]
    value = holder
    for step in path[cut - 1 :]:
        value = value[step]
    last = path[cut - 1]
    item = holder[last]
    if isinstance(last, int):
        holder[last] = None
        kept = f"{path_text(path[:cut])} is left out" if cut < len(path) else "it is left out"
    else:
        del holder[last]
        kept = "the field is left out"
    complain(path, _problem(error, value), kept, item if isinstance(last, int) else None)
    return True


def _problem(error: ShapeError, value: Any) -> str:
    """Return msgspec's error about a value in the terms of the operator who wrote it."""
    if error.fault is Fault.KEY_IS_NO_TEXT:
        return "a key is not a text"
    return wrong_type(value, error.types[0]) if error.types else error.text[:1].lower() + error.text[1:]
