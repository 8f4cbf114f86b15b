"""A connection of a health check by HTTPS: http_connection.py with TLS between socket and requests."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, ClassVar

from lbagent.probes.http_connection import HttpConnection

if TYPE_CHECKING:
    from lbagent.probes.check_time import Deadline


class HttpsConnection(HttpConnection):
    """Use it in order: `established`, `handshake`, `get`, `close`. An ssl.SSLError is an OSError."""

    want_read: ClassVar[tuple[type[Exception], ...]] = (ssl.SSLWantReadError,)
    want_write: ClassVar[tuple[type[Exception], ...]] = (ssl.SSLWantWriteError,)

    async def handshake(self, context: ssl.SSLContext, deadline: Deadline) -> None:
        """Start TLS."""
        # the certificate is of the server, not of the client: no server name is sent, as HAProxy's checks send none
        wrapped = context.wrap_socket(self._sock, do_handshake_on_connect=False)
        self._sock = wrapped
        self.begin()
        await self._do(wrapped.do_handshake, deadline)

    def _has_pending(self) -> bool:
        """Return whether TLS has read more from the socket than was requested."""
        assert isinstance(self._sock, ssl.SSLSocket)
        return bool(self._sock.pending())
