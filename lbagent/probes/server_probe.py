"""One health check of a server: an HTTPS GET, and in one word how it ended. 200-399 is up, everything else is a failure."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from lbagent.kernel.regular_file import check_regular
from lbagent.model.address import L3n4Addr
from lbagent.probes.check_time import CheckTimeout, Deadline
from lbagent.probes.https_connection import HttpsConnection, NotHttp
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.probes.tcp_connection import TcpConnection

UP_FIRST, UP_LAST = 200, 399
MAX_TEXT = 200  # characters of what a failure says


class Result(StrEnum):
    """How a check ended: the words of lbagent_apilb_checks_total."""

    OK = "ok"
    STATUS = "status"  # another one than 200-399
    REFUSED = "refused"
    TIMEOUT = "timeout"
    TLS = "tls"
    HTTP = "http"  # no answer of HTTP
    CONNECTION = "connection"  # it broke, or there is no way to the server


class Outcome(Struct, frozen=True):
    """A finished check. `text` is what an operator reads."""

    result: Result
    text: str

    @property
    def is_up(self) -> bool:
        """Whether the server answered as one that lives."""
        return self.result is Result.OK


class Contexts:
    """TLS settings by CA file, read again when a file changes. Without a CA file no certificate is verified."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], ssl.SSLContext]] = {}

    def get(self, ca_file: str) -> ssl.SSLContext:
        """Return the settings; those of the last good file while it is not. Raises OSError, or ValueError for what is no PEM."""
        try:
            found = os.stat(ca_file) if ca_file else None
            version = (found.st_mtime_ns, found.st_ino) if found else (0, 0)
            if ca_file not in self._known or self._known[ca_file][0] != version:
                self._known[ca_file] = version, _context(ca_file)
        except (OSError, ValueError):
            if ca_file not in self._known:
                raise
        return self._known[ca_file][1]


def _context(ca_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # HAProxy's `verify required` without `verifyhost`: the chain, not the name
    context.verify_mode = ssl.CERT_REQUIRED if ca_file else ssl.CERT_NONE
    if ca_file:
        try:
            check_regular(ca_file)
            context.load_verify_locations(ca_file)
        except ssl.SSLError as error:
            raise ValueError(f"{ca_file} holds no certificate in PEM") from error
    return context


class Probe:
    """Asks one server. Its idle connection, if there is one, is used for the next check that may use it."""

    def __init__(
        self, server: L3n4Addr, check: ProbeSpec, contexts: Contexts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is what time-outs are measured by."""
        self._server, self._check, self._contexts, self._clock = server, check, contexts, clock
        self._idle: HttpsConnection | None = None
        self._request = request_of(check)

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Check once. It ends after the check's timeout at the latest; connecting may take one interval at most, too.

        Raises OSError or ValueError when the CA file cannot be used: that says nothing of the server.
        """
        context = self._contexts.get(self._check.ca_file)
        idle, self._idle = self._idle, None
        if idle is not None and (idle.has_ended or not may_use_idle):
            idle.close()
            idle = None
        deadline = Deadline(self._check.timeout, self._clock)
        try:
            return (idle and await self._by_idle(idle, deadline)) or await self._by_new(context, deadline)
        except CheckTimeout:
            return Outcome(Result.TIMEOUT, f"no answer within {self._check.timeout:g} s")
        except ConnectionRefusedError:
            return Outcome(Result.REFUSED, "connection refused")
        except NotHttp as error:
            return Outcome(Result.HTTP, str(error)[:MAX_TEXT])
        except ssl.SSLError as error:
            return Outcome(Result.TLS, f"TLS: {error.reason or error}"[:MAX_TEXT])
        except TimeoutError:
            return Outcome(Result.TIMEOUT, "the connection timed out")
        except OSError as error:
            return Outcome(Result.CONNECTION, (error.strerror or str(error))[:MAX_TEXT])
        finally:
            deadline.close()

    def close(self) -> None:
        """End the idle connection."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    async def _by_idle(self, idle: HttpsConnection, deadline: Deadline) -> Outcome | None:
        """Ask by the idle connection, and see that the server takes new ones; None when it ended while it was idle."""
        with contextlib.closing(TcpConnection(self._server, half_open=True)) as beside:
            try:
                status = await self._get(idle, deadline)
            except (OSError, NotHttp):
                return None
            await self._connect(beside, deadline)
        return _judged(status)

    async def _by_new(self, context: ssl.SSLContext, deadline: Deadline) -> Outcome:
        new = HttpsConnection(self._server)
        try:
            await self._connect(new, deadline)
            await new.handshake(context, deadline)
        except BaseException:
            new.close()
            raise
        return _judged(await self._get(new, deadline))

    async def _connect(self, connection: TcpConnection, deadline: Deadline) -> None:
        """Wait until it is connected: for an interval at most where that is shorter than the time-out."""
        if self._check.interval >= self._check.timeout:
            await connection.established(deadline)
            return
        with contextlib.closing(Deadline(self._check.interval, self._clock)) as limit:
            await connection.established(limit)

    async def _get(self, connection: HttpsConnection, deadline: Deadline) -> int:
        """Ask by a connection, and keep it where it may be asked again."""
        try:
            status = await connection.get(self._request, deadline)
        except BaseException:
            connection.close()
            raise
        if connection.stays and self._idle is None:
            self._idle = connection
        else:
            connection.close()
        return status


def request_of(check: ProbeSpec) -> bytes:
    """Return the request of a check (RFC 9112)."""
    lines = (f"GET {check.path} HTTP/1.1", f"Host: {check.host}", "User-Agent: lbagent", "Accept: */*", "", "")
    return "\r\n".join(lines).encode()


def _judged(status: int) -> Outcome:
    is_up = UP_FIRST <= status <= UP_LAST
    return Outcome(Result.OK if is_up else Result.STATUS, f"HTTP status {status}")
