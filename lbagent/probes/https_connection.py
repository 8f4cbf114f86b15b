"""One TLS connection of a health check: connect, handshake, one GET, the status. Nothing of it blocks the event loop.

Sockets are driven by hand: asyncio's own TLS keeps 256 KiB for each connection and takes twice the CPU, and there is a check for
each server every few seconds.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from lbagent.probes.tcp_connection import TcpConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from lbagent.probes.check_time import Deadline

MAX_HEAD_BYTES = 16 << 10  # of an answer: what is longer is none
MAX_BODY_BYTES = 16 << 10  # of one that is read: a connection with more ahead is closed
MAX_DIGITS = 12  # of a Content-Length
_CHUNK = 4096  # bytes read at once
T = TypeVar("T")


class NotHttp(Exception):
    """The server answered, and not as HTTP does."""


class HttpsConnection(TcpConnection):
    """Use it in order: `established`, `handshake`, `get`, `close`.

    Each raises OSError (ssl.SSLError is one), NotHttp or CheckTimeout.
    """

    stays = False  # the last answer was read to its end, and the server keeps the connection
    has_ended = False  # while it was idle
    _deadline: Deadline | None = None
    _step: Callable[[], Any] | None = None  # what waits for the socket

    async def handshake(self, context: ssl.SSLContext, deadline: Deadline) -> None:
        """Begin TLS."""
        # the certificate names the server, not who asks for it: no name is sent, as HAProxy's checks send none
        wrapped = context.wrap_socket(self._sock, do_handshake_on_connect=False)
        self._sock = wrapped
        self._loop.add_reader(wrapped.fileno(), self._ready)  # it stays: adding it for each read costs more than a read
        await self._do(wrapped.do_handshake, deadline)

    async def get(self, request: bytes, deadline: Deadline) -> int:
        """Send a request; return the status of the answer. `stays` then says whether another one may follow."""
        sock = self._tls
        self.stays = False
        await self._do(lambda: sock.send(request), deadline)
        head = await self._read(b"", lambda data: b"\r\n\r\n" in data or _is_rubbish(data), deadline)
        status = _status(head)
        length = _body_bytes(head, status)
        if length is not None and length <= MAX_BODY_BYTES:
            await self._read(head.partition(b"\r\n\r\n")[2], lambda data: len(data) >= length, deadline)
            self.stays = True
        return status

    async def _read(self, data: bytes, is_enough: Callable[[bytes], bool], deadline: Deadline) -> bytes:
        sock = self._tls
        while not is_enough(data):
            # what follows a request is not there yet: the first try would be in vain
            piece = await self._do(lambda: sock.recv(_CHUNK), deadline, at_once=bool(data) or bool(sock.pending()))
            if not piece:
                if data:
                    break  # what there is says whether it is an answer
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

    @property
    def _tls(self) -> ssl.SSLSocket:
        assert isinstance(self._sock, ssl.SSLSocket)
        return self._sock

    async def _do(self, step: Callable[[], T], deadline: Deadline, *, at_once: bool = True) -> T:
        """Repeat a step of TLS until it needs to wait no more."""
        if at_once:
            try:
                return step()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLWantWriteError:
                self._loop.add_writer(self._sock.fileno(), self._ready)
        self._step, self._deadline = step, deadline
        try:
            result: T = await deadline.wait()
        finally:
            self._step = self._deadline = None
        return result

    def _ready(self) -> None:
        """Go on with the step: here and not in the task, before whose turn the loop would report the same data again."""
        self._loop.remove_writer(self._sock.fileno())
        step, deadline = self._step, self._deadline
        if deadline is None:
            self._look_idle()
            return
        if step is None:
            return  # it is done, and its task about to go on
        try:
            result = step()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._sock.fileno(), self._ready)
            return
        except (OSError, ValueError) as error:
            deadline.failed(error)
        else:
            deadline.done(result)
        self._step = None

    def _look_idle(self) -> None:
        """Notice that an idle connection has ended, or says what it was not asked for."""
        try:
            socket.socket.recv(self._sock, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            pass
        self.has_ended = True
        self._loop.remove_reader(self._sock.fileno())


def _is_rubbish(data: bytes) -> bool:
    """Return whether this cannot become an answer any more."""
    return not data.startswith(b"HTTP/1."[: len(data)])


def _status(head: bytes) -> int:
    """Return the status of an answer's first line (RFC 9112, 4). Raises NotHttp."""
    found = re.match(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r\n", head)
    if found is None:
        raise NotHttp("the answer does not begin with a status of HTTP/1.1")
    return int(found[1])


def _body_bytes(head: bytes, status: int) -> int | None:
    """Return how long the body of an answer is; None where only the connection's end would tell, or the server ends it."""
    fields = head.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    if not head.startswith(b"HTTP/1.1") or b"connection: close" in fields:
        return None
    if status in (204, 304):
        return 0
    lengths = [line.partition(b":")[2].strip() for line in fields if line.startswith(b"content-length:")]
    return int(lengths[0]) if len(lengths) == 1 and lengths[0].isdigit() and len(lengths[0]) < MAX_DIGITS else None
