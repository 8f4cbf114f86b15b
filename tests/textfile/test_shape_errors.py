"""The fields of msgspec's errors. A version of msgspec with other words fails here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from lbagent.textfile.shape_errors import Fault, shape_error


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    by_word: dict[str, int] = {}
    items: list[int] = []
    time: int | str = 0
    options: dict[str, Any] | None = None
    word: Literal["a", "b"] = "a"
    few: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1


class Outer(msgspec.Struct, forbid_unknown_fields=True, rename="kebab"):
    inner: Inner | None = None
    many: list[Inner] = []
    most_of_all: Annotated[int, msgspec.Meta(le=100)] = 0


@pytest.mark.parametrize(
    ("raw", "fault", "path", "key", "types"),
    [
        ([], Fault.WRONG_TYPE, (), "", ("object",)),
        ({"iner": {}}, Fault.UNKNOWN_KEY, (), "iner", ()),
        ({1: 2}, Fault.KEY_IS_NO_TEXT, (), "", ()),
        ({"inner": 1}, Fault.WRONG_TYPE, ("inner",), "", ("object", "null")),
        ({"inner": {}}, Fault.MISSING_KEY, ("inner",), "number", ()),
        ({"inner": {"number": "x"}}, Fault.WRONG_TYPE, ("inner", "number"), "", ("int",)),
        ({"inner": {"number": 1, "z": 2}}, Fault.UNKNOWN_KEY, ("inner",), "z", ()),
        ({"inner": {"number": 1, "by_word": {1: 2}}}, Fault.KEY_IS_NO_TEXT, (), "", ()),
        ({"inner": {"number": 1, "by_word": {"a": "b"}}}, Fault.WRONG_TYPE, ("inner", "by_word"), "", ("int",)),
        ({"inner": {"number": 1, "items": [1, "x"]}}, Fault.WRONG_TYPE, ("inner", "items", 1), "", ("int",)),
        ({"inner": {"number": 1, "time": []}}, Fault.WRONG_TYPE, ("inner", "time"), "", ("int", "str")),
        ({"inner": {"number": 1, "options": 1}}, Fault.WRONG_TYPE, ("inner", "options"), "", ("object", "null")),
        ({"inner": {"number": 1, "word": "c - at `key` in "}}, Fault.OTHER, ("inner", "word"), "", ()),
        ({"inner": {"number": 1, "few": 9}}, Fault.WRONG_TYPE, ("inner", "few"), "", ("int",)),
        ({"most-of-all": 101}, Fault.WRONG_TYPE, ("most-of-all",), "", ("int",)),
        ({"many": [{"number": 1}, {"number": None}]}, Fault.WRONG_TYPE, ("many", 1, "number"), "", ("int",)),
    ],
)
def test_the_fields_of_an_error(
    raw: Any, fault: Fault, path: tuple[str | int, ...], key: str, types: tuple[str, ...]
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(raw, Outer)
    assert shape_error(caught.value) == (fault, path, str(caught.value), key, types)
