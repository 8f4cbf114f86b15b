"""A small HTTP/1.1 server over asyncio streams, for the agent's socket and for metrics.

Not aiohttp: measured here (python 3.11), `import aiohttp.web` adds 15 MiB of resident memory and 130 ms to an agent that has 35
MiB with asyncio, msgspec, YAML and pyroute2 loaded and a budget of 60. The need is five routes for one local client.

Strict on purpose: request line and headers <= 16 KiB, bodies <= 1 MiB and only with Content-Length, 64 connections, a deadline on
every read and write. Any other request is answered with its status and the connection is closed. A listener that any host may
reach also bounds the connections of one client, and makes room for a new one (`Limits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from lbagent.http.message_head import MalformedHead, content_length, parse_fields, parse_request_line

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024  # bytes of request line and headers
MAX_BODY_BYTES = 1024 * 1024  # bytes: some 20,000 addresses in one set-state
CONNECTIONS = 64
HEAD_S = 5.0  # for the first byte of a new connection, and from a first byte to the end of the head
IDLE_S = 60.0  # for the first byte of the next request
READ_S = 10.0  # for the body of a request
WRITE_S = 30.0  # for the client to take a piece of an answer
EVENT_WRITE_S = 5.0  # ... of a stream of events
METHODS = frozenset(("GET", "PUT"))  # of the agent's socket


class Request(Struct, frozen=True):
    """One request; the path is not decoded, the query is."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    host: str = ""  # the field Host, unchanged
    local: str = ""  # the address at which the client reached the server; '' for a Unix socket


Headers = tuple[tuple[str, str], ...]


class Response(Struct, frozen=True):
    """One answer. A body in pieces is sent chunked, and the event loop runs other tasks between two pieces.

    Of an endless body (an asynchronous generator) the client must take each piece within EVENT_WRITE_S; it ends with the
    connection, and is closed then.
    """

    status: int
    body: bytes | Iterable[bytes] | AsyncGenerator[bytes, None]
    content_type: str = "application/json"
    headers: Headers = ()  # in addition to those of every answer


Handler = Callable[[Request], Awaitable[Response]]


class Limits(Struct, frozen=True):
    """How many connections a listener has at once. The defaults are for a socket that only root may open.

    With `makes_room`, a new connection beyond the limit replaces one without a request in progress: of the client with most
    connections, the one that has waited longest. Without it, and when all have one in progress, the new one is answered with 503.
    """

    connections: int = CONNECTIONS
    per_client: int = CONNECTIONS  # of one address
    makes_room: bool = False
    answer_s: float | None = None  # for the client to take a whole answer


DEFAULT_LIMITS = Limits()


class BadRequest(Exception):
    """The bytes are not an accepted request; has the status."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Connection:
    """A connection: its client's address, and the time since when it has no request in progress (None: it has one)."""

    def __init__(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self.task = task
        self.client = str(peer[0]) if isinstance(peer, tuple) else ""
        self.waiting_since: float | None = time.monotonic()


class HttpServer:
    """Serves one handler on any number of listeners. The handler must not raise."""

    def __init__(
        self, handler: Handler, limits: Limits = DEFAULT_LIMITS, methods: Collection[str] | None = METHODS
    ) -> None:
        """`methods` None: the handler gets any method."""
        self._handler, self._limits, self._methods = handler, limits, methods
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # also the rejected and replaced ones

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends: the callback for asyncio.start_server and start_unix_server."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = _Connection(task, writer)
        try:
            if self._admit(connection):
                await self._serve(connection, reader, writer)
            else:
                await _send(writer, _plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections"), close=True)
        except TimeoutError:
            writer.transport.abort()  # it would be kept until the client has read its answer
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            self._connections.discard(connection)
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def close(self) -> None:
        """Close the connections that are still open."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _admit(self, new: _Connection) -> bool:
        """Add a connection, in place of another one where there are too many; return whether it is accepted."""
        limits, counts = self._limits, Counter(each.client for each in self._connections)
        full = len(self._connections) >= limits.connections
        if counts[new.client] >= limits.per_client or full:
            only = new.client if counts[new.client] >= limits.per_client else None
            idle = [
                (-counts[each.client], each.waiting_since, id(each), each)
                for each in self._connections
                if each.waiting_since is not None and only in (None, each.client)
            ]
            if not (limits.makes_room and idle):
                return False
            *_, given_up = min(idle)
            self._connections.discard(given_up)
            given_up.task.cancel()
        self._connections.add(new)
        return True

    async def _serve(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep, begin_s = True, HEAD_S
        while keep:
            try:
                head = await _read_head(reader, begin_s)
                if not head:
                    return
                async with asyncio.timeout(READ_S):
                    request, keep = await _read_request(head, reader, self._methods, _local_address(writer))
            except BadRequest as error:
                await _send(writer, _plain(error.status, str(error)), close=True)
                return
            connection.waiting_since = None
            response = await self._handler(request)
            if isinstance(response.body, AsyncGenerator):
                await _send_events(writer, response, response.body, with_body=request.method != "HEAD")
                return
            async with asyncio.timeout(self._limits.answer_s):
                await _send(writer, response, close=not keep, with_body=request.method != "HEAD")
            connection.waiting_since, begin_s = time.monotonic(), IDLE_S


async def _read_head(reader: asyncio.StreamReader, begin_s: float) -> bytes:
    """Return request line and headers; b'' when the client closes the connection before them.

    The client has `begin_s` seconds for the first byte and HEAD_S for the rest, however slowly the bytes come.
    """
    async with asyncio.timeout(begin_s):
        first = await reader.read(1)
    if not first:
        return b""
    try:
        async with asyncio.timeout(HEAD_S):
            return first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request's head is too large") from None
    except asyncio.IncompleteReadError:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request ends in its head") from None


async def _read_request(
    head: bytes, reader: asyncio.StreamReader, methods: Collection[str] | None, local: str
) -> tuple[Request, bool]:
    lines = head.split(b"\r\n")
    try:
        method, target, version = parse_request_line(lines[0])
        if methods is not None and method not in methods:
            raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, f"only {' and '.join(sorted(methods))} are served")
        if not target.startswith("/"):
            raise BadRequest(HTTPStatus.BAD_REQUEST, "the target must be a path")
        headers = parse_fields(lines[1:])
        if "transfer-encoding" in headers:
            raise BadRequest(HTTPStatus.LENGTH_REQUIRED, "a body needs Content-Length")
        length = content_length(headers) or 0
    except MalformedHead as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, str(error)) from None
    if length > MAX_BODY_BYTES:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {MAX_BODY_BYTES} bytes")
    body = await reader.readexactly(length)
    url = urlsplit("//agent" + target)
    try:
        query = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=16))
    except ValueError:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "too many query fields") from None
    connection = headers.get("connection", "keep-alive" if version == "1.1" else "close")
    request = Request(method, url.path, query, body, headers.get("host", ""), local)
    return request, connection.lower() == "keep-alive"


def _plain(status: HTTPStatus, text: str) -> Response:
    return Response(status, (text + "\n").encode(), "text/plain; charset=utf-8")


def _local_address(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("sockname")
    return str(name[0]) if isinstance(name, tuple) else ""


async def _send_events(
    writer: asyncio.StreamWriter, response: Response, events: AsyncGenerator[bytes, None], *, with_body: bool
) -> None:
    """Write an endless answer until the client leaves, or takes a piece too late (TimeoutError)."""
    async with contextlib.aclosing(events):
        writer.write(_head(response, "Transfer-Encoding: chunked", close=True))
        if not with_body:
            return
        async for piece in events:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            async with asyncio.timeout(EVENT_WRITE_S):
                await writer.drain()


def _head(response: Response, length: str, *, close: bool) -> bytes:
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n{length}\r\n"
        + "".join(f"{name}: {value}\r\n" for name, value in response.headers)
        + f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
    )
    return head.encode()


async def _send(writer: asyncio.StreamWriter, response: Response, *, close: bool, with_body: bool = True) -> None:
    """Write an answer, or (HEAD) its head alone; the client must take each piece within WRITE_S."""
    whole = isinstance(response.body, bytes)
    length = (
        f"Content-Length: {len(response.body)}" if isinstance(response.body, bytes) else "Transfer-Encoding: chunked"
    )
    writer.write(_head(response, length, close=close))
    if not with_body:
        async with asyncio.timeout(WRITE_S):
            await writer.drain()
        return
    assert not isinstance(response.body, AsyncGenerator)
    for piece in [response.body] if isinstance(response.body, bytes) else response.body:
        if piece:
            writer.write(piece if whole else b"%x\r\n%b\r\n" % (len(piece), piece))
        async with asyncio.timeout(WRITE_S):
            await writer.drain()
        await asyncio.sleep(0)
    if not whole:
        writer.write(b"0\r\n\r\n")
    async with asyncio.timeout(WRITE_S):
        await writer.drain()
