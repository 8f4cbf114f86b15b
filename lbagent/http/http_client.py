"""The HTTP/1.1 client: one request on its own connection, and the answer, bounded in bytes and seconds. It follows no redirect.

Not aiohttp: its one user is the client of the API server, and it costs 15 MiB of memory. Health checks read no body and keep
connections: lbagent/probes has theirs over the same heads. Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from msgspec import Struct

from lbagent.errors import LbError
from lbagent.http.message_head import MalformedHead, content_length, parse_fields, parse_status_line, request_head

MAX_HEAD_BYTES = 16 << 10
MAX_LINE_BYTES = 8 << 10
MAX_BODY_BYTES = 256 << 10
DEFAULT_PORT = 80
REDIRECTS = range(300, 400)


class NoAnswer(LbError):
    """The server gave no answer, or none that can be read."""


class Url(Struct, frozen=True):
    """A http URL in its parts; `target` is path and query."""

    host: str
    port: int
    target: str

    def __str__(self) -> str:
        return f"http://{self.authority}{self.target}"

    @property
    def authority(self) -> str:
        """Host and port, as the field Host has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORT else f"{host}:{self.port}"


class HttpAnswer(Struct, frozen=True):
    """Status and body."""

    status: int
    body: bytes


def parse_url(text: str) -> Url:
    """Return the parts of a http URL. Raises ValueError."""
    if not text.isascii() or any(not char.isprintable() or char == " " for char in text):
        raise ValueError("it has characters that no URL has")
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or parts.username is not None:
        raise ValueError(f"{text!r} is no URL like http://192.168.1.1:5000/rootDesc.xml")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Url(parts.hostname, parts.port or DEFAULT_PORT, target)


async def exchange(
    method: str, url: Url, headers: Mapping[str, str], body: bytes = b"", *, within_s: float = 5.0
) -> HttpAnswer:
    """Send a request on a connection of its own; return the answer. Raises NoAnswer."""
    try:
        async with asyncio.timeout(within_s):
            return await _exchange(method, url, headers, body)
    except TimeoutError:
        raise NoAnswer(f"{url}: no answer within {within_s:g} s") from None
    except OSError as error:
        raise NoAnswer(f"{url}: {error.strerror or error}") from None
    except (asyncio.IncompleteReadError, EOFError):
        raise NoAnswer(f"{url}: the answer ends too soon") from None
    except ValueError as error:
        raise NoAnswer(f"{url}: {error}") from None


async def _exchange(method: str, url: Url, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=MAX_LINE_BYTES)
    try:
        fields = {"Host": url.authority, "Connection": "close", **headers}
        if body:
            fields["Content-Length"] = str(len(body))
        writer.write(request_head(method, url.target, fields) + body)
        await writer.drain()
        return await _answer(reader)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> HttpAnswer:
    try:
        status = parse_status_line(await _line(reader)).status
    except MalformedHead:
        raise ValueError("the answer is no HTTP") from None
    if status in REDIRECTS:
        raise ValueError(f"it redirects ({status}), which is not followed")
    fields = parse_fields(await _field_lines(reader), strict=False)
    if fields.get("transfer-encoding", "identity").lower() == "chunked":
        return HttpAnswer(status, await _chunks(reader))
    try:
        length = content_length(fields)
    except MalformedHead:
        raise ValueError("the answer has no length") from None
    if length is None:
        return HttpAnswer(status, await _until_end(reader))
    return HttpAnswer(status, await reader.readexactly(_bounded(length)))


async def _field_lines(reader: asyncio.StreamReader) -> list[bytes]:
    found: list[bytes] = []
    size = 0
    while line := await _line(reader):
        size += len(line)
        if size > MAX_HEAD_BYTES:
            raise ValueError("the answer's head is too large")
        found.append(line)
    return found


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line.rstrip(b"\r\n")


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        text = (await _line(reader)).partition(b";")[0].strip()
        try:
            size = int(text, 16)
        except ValueError:
            raise ValueError("the answer's chunks have no length") from None
        if size < 0:
            raise ValueError("the answer's chunks have no length")
        if not size:
            return body
        _bounded(len(body) + size)
        body += await reader.readexactly(size)
        await _line(reader)


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while piece := await reader.read(MAX_BODY_BYTES + 1):
        body += piece
        _bounded(len(body))
    return body


def _bounded(size: int) -> int:
    if size > MAX_BODY_BYTES:
        raise ValueError(f"the answer is larger than {MAX_BODY_BYTES >> 10} KiB")
    return size
