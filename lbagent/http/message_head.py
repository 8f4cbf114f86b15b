"""Heads of HTTP/1.1 messages: the first line and the fields (RFC 9112, 2 to 6). Bytes in, records out.

The caller owns the sockets and the limits of a head in bytes and seconds: callers have different kinds of peers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MAX_LENGTH_DIGITS = 11  # digits of a Content-Length: no body of 100 GB is accepted
VERSIONS = ("1.0", "1.1")
_STATUS_LINE = re.compile(rb"HTTP/(1\.\d) (\d{3})(?: [^\r\n]*)?")
_NO_TEXT = re.compile(r"[\0\r\n]")


class MalformedHead(ValueError):
    """The bytes are not a head of HTTP/1.1."""


class RequestLine(NamedTuple):
    """`GET /v1/status HTTP/1.1`, unchanged."""

    method: str
    target: str
    version: str  # 1.0, 1.1


class StatusLine(NamedTuple):
    """`HTTP/1.1 200 OK` without its reason."""

    version: str
    status: int


Fields = Mapping[str, str]  # by name in lower case


def parse_request_line(line: bytes) -> RequestLine:
    """Return the parts of a request's first line. Raises MalformedHead."""
    parts = line.decode("latin-1").split(" ")
    version = parts[-1].removeprefix("HTTP/")
    if len(parts) != 3 or version not in VERSIONS or not parts[-1].startswith("HTTP/"):
        raise MalformedHead("not an HTTP/1.1 request")
    return RequestLine(parts[0], parts[1], version)


def parse_status_line(line: bytes) -> StatusLine:
    """Return version and status of an answer's first line. Raises MalformedHead."""
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise MalformedHead("not an answer of HTTP/1.1")
    return StatusLine(found[1].decode(), int(found[2]))


def request_head(method: str, target: str, fields: Mapping[str, str]) -> bytes:
    """Return the head of a request, with the empty line at its end."""
    lines = (f"{method} {target} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items()), "", "")
    return "\r\n".join(lines).encode()


def parse_fields(lines: Iterable[bytes], *, strict: bool = True) -> Fields:
    """Return the fields up to an empty line; values of one name are joined by commas. Raises MalformedHead.

    Without `strict` a malformed line is skipped: many small devices send some.
    """
    out: dict[str, str] = {}
    for line in lines:
        if not line:
            break
        name, colon, value = line.decode("latin-1").partition(":")
        if strict and (not colon or not name or name != name.strip() or _NO_TEXT.search(value)):
            raise MalformedHead("a header line is not well formed")
        key, text = name.strip().lower(), value.strip()
        if colon and key:
            out[key] = f"{out[key]}, {text}" if key in out else text
    return out


def content_length(fields: Fields) -> int | None:
    """Return the length of the body that follows; None where the fields have none. Raises MalformedHead."""
    text = fields.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_LENGTH_DIGITS):
        raise MalformedHead("Content-Length is not a number")
    return int(text)
