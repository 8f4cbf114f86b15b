"""XML of routers: read without namespaces, and rejected if it is dangerous or too large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.cloud.edge.protocols.bounded_xml import MAX_BYTES, BadXml, parse_xml


def test_names_and_texts() -> None:
    root = parse_xml(b'<a xmlns="urn:x" xmlns:y="urn:y"> <y:b>\n one &amp; two </y:b><c><b>three</b></c></a>')
    assert root.name == "a"
    assert root.text_of("b") == "one & two"
    assert root.text_of("nothing") == ""
    assert [each.text for each in root.every("b")] == ["one & two", "three"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no element found"),
        (b"<a><b></a>", "mismatched tag"),
        (b"not xml", "syntax error"),
        (b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "document type"),
        (b'<!DOCTYPE a SYSTEM "http://192.0.2.9/x"><a/>', "document type"),
        (b"<a>" * 40 + b"</a>" * 40, "more than 32 levels"),
        (b"<a>" + b"<b/>" * 5000 + b"</a>", "more than 5000 elements"),
        (b"<a>" + b"x" * MAX_BYTES + b"</a>", "larger than 256 KiB"),
        (b'<?xml version="1.0" encoding="klingon"?><a/>', "unknown encoding"),
        (b"<a>&nbsp;</a>", "undefined entity"),
    ],
)
def test_what_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(BadXml, match=problem):
        parse_xml(data)


@given(st.binary(max_size=200) | st.text("<>/&;ab!? \"='x", max_size=200).map(str.encode))
def test_anything_else_is_a_tree_or_bad(data: bytes) -> None:
    try:
        assert parse_xml(data).name
    except BadXml:
        pass
