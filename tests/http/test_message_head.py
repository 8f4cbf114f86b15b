"""Heads of HTTP messages: what is one, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbagent.http.message_head import (
    MalformedHead,
    RequestLine,
    StatusLine,
    content_length,
    parse_fields,
    parse_request_line,
    parse_status_line,
)


def test_request_lines() -> None:
    assert parse_request_line(b"GET /v1/status?x=1 HTTP/1.1") == RequestLine("GET", "/v1/status?x=1", "1.1")
    assert parse_request_line(b"put * HTTP/1.0") == RequestLine("put", "*", "1.0")


@pytest.mark.parametrize(
    "line",
    [b"", b"GET", b"GET /", b"GET / HTTP/2", b"GET / HTTP/1.2", b"GET / 1.1", b"GET  / HTTP/1.1", b"GET / x HTTP/1.1"],
)
def test_request_lines_that_are_none(line: bytes) -> None:
    with pytest.raises(MalformedHead):
        parse_request_line(line)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"HTTP/1.1 200 OK", StatusLine("1.1", 200)),
        (b"HTTP/1.0 399", StatusLine("1.0", 399)),
        (b"HTTP/1.1 404 ", StatusLine("1.1", 404)),
        (b"HTTP/1.1 500 \xfcbel genommen", StatusLine("1.1", 500)),
    ],
)
def test_status_lines(line: bytes, found: StatusLine) -> None:
    assert parse_status_line(line) == found


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 20",
        b"HTTP/1.1  200 OK",
        b"SSH-2.0-x",
        b"HTTP/1.1 200 a\nb",
    ],
)
def test_status_lines_that_are_none(line: bytes) -> None:
    with pytest.raises(MalformedHead):
        parse_status_line(line)


def test_fields() -> None:
    lines = [b"Host: agent", b"A:b", b"X-Empty:", b"a: \tc ", b"", b"not: a field"]
    assert parse_fields(lines) == {"host": "agent", "a": "b, c", "x-empty": ""}
    assert parse_fields([]) == {}


@pytest.mark.parametrize("line", [b"no colon", b" folded: x", b"name : x", b": x", b"a: b\nc: d", b"a: b\rc", b"a: \0"])
def test_lines_that_are_no_field(line: bytes) -> None:
    """A sloppy server's are left out, a client's are refused: two readers of one message must not read two messages."""
    with pytest.raises(MalformedHead):
        parse_fields([b"a: b", line])
    assert parse_fields([b"z: b", b"no colon", b": x"], strict=False) == {"z": "b"}


@pytest.mark.parametrize(("text", "length"), [("0", 0), ("41", 41), ("9" * 11, 99999999999)])
def test_lengths(text: str, length: int) -> None:
    assert content_length(parse_fields([f"Content-Length: {text}".encode()])) == length
    assert content_length({}) is None


@pytest.mark.parametrize("text", ["", "-1", "+1", "0x5", "1.0", "9" * 12, "5, 5", "\xb2"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(MalformedHead):
        content_length(parse_fields([f"Content-Length: {text}".encode("latin-1")]))
    with pytest.raises(MalformedHead):
        content_length(parse_fields([b"Content-Length: 1", b"content-length: 1"]))


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_a_head_or_refused(lines: list[bytes]) -> None:
    for parse in (parse_request_line, parse_status_line):
        try:
            parse(b" ".join(lines))
        except MalformedHead:
            continue
    fields = parse_fields(lines, strict=False)
    assert all(name and name == name.lower().strip() for name in fields)
    try:
        assert parse_fields(lines) == fields
    except MalformedHead:
        pass
