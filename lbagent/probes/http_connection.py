"""One connection of a health check by HTTP: connect, one GET, the status. It never blocks the event loop.

Sockets are used directly: asyncio's own TLS keeps 256 KiB for each connection and takes twice the CPU, and there is a check for
each server every few seconds. https_connection.py adds TLS.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from lbagent.http.message_head import VERSIONS, MalformedHead, content_length, parse_fields, parse_status_line
from lbagent.probes.probe_protocol import NotHttp
from lbagent.probes.tcp_connection import TcpConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from lbagent.probes.check_time import Deadline

MAX_HEAD_BYTES = 16 << 10  # of an answer: a longer one is invalid
MAX_BODY_BYTES = 16 << 10  # of a body that is read: a connection with more to read is closed
NO_BODY = (204, 304)
NO_STATUS = "the answer does not begin with a status of HTTP/1.1"
_CHUNK = 4096  # bytes read at once
_END = b"\r\n\r\n"
T = TypeVar("T")


class WantWrite(Exception):
    """The socket cannot send or receive now."""


class HttpConnection(TcpConnection):
    """Use it in order: `established`, `begin`, `get`, `close`.

    Each raises OSError, NotHttp or CheckTimeout.
    """

    stays = False  # the last answer was read to its end, and the server keeps the connection
    has_ended = False  # while it was idle
    want_read: ClassVar[tuple[type[Exception], ...]] = (BlockingIOError,)
    want_write: ClassVar[tuple[type[Exception], ...]] = (WantWrite,)
    _deadline: Deadline | None = None
    _step: Callable[[], Any] | None = None  # the step that waits for the socket

    def begin(self) -> None:
        """Watch the socket of an established connection."""
        self._loop.add_reader(
            self._sock.fileno(), self._ready
        )  # it stays registered: adding it for each read costs more than a read

    async def get(self, request: bytes, deadline: Deadline) -> int:
        """Send a request; return the status of the answer. `stays` is then whether another one may follow."""
        self.stays = False
        await self._do(lambda: self._send(request), deadline)
        head = await self._read(b"", lambda data: _END in data or _is_rubbish(data), deadline)
        status, length = _answer(head)
        if length is not None and length <= MAX_BODY_BYTES:
            await self._read(head.partition(_END)[2], lambda data: len(data) >= length, deadline)
            self.stays = True
        return status

    def _send(self, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            raise WantWrite from None

    def _has_pending(self) -> bool:
        """Return whether bytes wait that the socket no longer reports."""
        return False

    async def _read(self, data: bytes, is_enough: Callable[[bytes], bool], deadline: Deadline) -> bytes:
        while not is_enough(data):
            # the answer to a request is not there yet: the first try would fail
            piece = await self._do(lambda: self._sock.recv(_CHUNK), deadline, at_once=bool(data) or self._has_pending())
            if not piece:
                if data:
                    break  # the received bytes decide whether it is an answer
                raise ConnectionResetError(errno.ECONNRESET, "the connection ended without an answer")
            data += piece
            if len(data) > MAX_HEAD_BYTES + MAX_BODY_BYTES:
                raise NotHttp(f"an answer without an end in its first {len(data)} bytes")
        return data

    def close(self) -> None:
        """See TcpConnection."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
        super().close()

    async def _do(self, step: Callable[[], T], deadline: Deadline, *, at_once: bool = True) -> T:
        """Repeat a step until it does not have to wait."""
        if at_once:
            try:
                return step()
            except self.want_read:
                pass
            except self.want_write:
                self._loop.add_writer(self._sock.fileno(), self._ready)
        self._step, self._deadline = step, deadline
        try:
            result: T = await deadline.wait()
        finally:
            self._step = self._deadline = None
        return result

    def _ready(self) -> None:
        """Continue the step here, not in the task, before whose turn the loop would report the same data again."""
        self._loop.remove_writer(self._sock.fileno())
        step, deadline = self._step, self._deadline
        if deadline is None:
            self._look_idle()
            return
        if step is None:
            return  # it is done, and its task is about to resume
        try:
            result = step()
        except self.want_read:
            return
        except self.want_write:
            self._loop.add_writer(self._sock.fileno(), self._ready)
            return
        except (OSError, ValueError) as error:
            deadline.failed(error)
        else:
            deadline.done(result)
        self._step = None

    def _look_idle(self) -> None:
        """Detect that an idle connection has ended, or sends data without a request."""
        try:
            socket.socket.recv(self._sock, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            pass
        self.has_ended = True
        self._loop.remove_reader(self._sock.fileno())


def _is_rubbish(data: bytes) -> bool:
    """Return whether this can no longer become an answer."""
    return not data.startswith(b"HTTP/1."[: len(data)])


def _answer(head: bytes) -> tuple[int, int | None]:
    """Return the status of an answer and the length of its body: None where only the connection's end limits it.

    Its first line must be complete; a head that ends too soon after it has no body. Raises NotHttp.
    """
    line, whole, rest = head.partition(b"\r\n")
    try:
        version, status = parse_status_line(line if whole else b"")
    except MalformedHead:
        raise NotHttp(NO_STATUS) from None
    if version not in VERSIONS:
        raise NotHttp(NO_STATUS)
    fields = parse_fields(rest.partition(_END)[0].split(b"\r\n"), strict=False)
    if version != "1.1" or fields.get("connection", "").lower() == "close" or "transfer-encoding" in fields:
        return status, None
    try:
        return status, 0 if status in NO_BODY else content_length(fields)
    except MalformedHead:
        return status, None
