"""The HTTPS probe: the HTTP probe over TLS, with or without a CA file that verifies the server's certificate."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable

from lbagent.kernel.regular_file import check_regular
from lbagent.probes.check_time import Deadline
from lbagent.probes.destination import Destination
from lbagent.probes.http_connection import HttpConnection
from lbagent.probes.http_probe import HttpProbe
from lbagent.probes.https_connection import HttpsConnection
from lbagent.probes.probe_protocol import Outcome
from lbagent.probes.probe_spec import ProbeSpec


class Contexts:
    """TLS settings by CA file, read again when a file changes. Without a CA file no certificate is verified."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], ssl.SSLContext]] = {}

    def get(self, ca_file: str) -> ssl.SSLContext:
        """Return the settings; the last good ones while the file is bad. Raises OSError, or ValueError for a file without PEM."""
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


class HttpsProbe(HttpProbe):
    """Probes one server over TLS."""

    def __init__(
        self,
        server: Destination,
        check: ProbeSpec,
        contexts: Contexts,
        clock: Callable[[], float] = time.monotonic,
        *,
        keeps: bool = True,
    ) -> None:
        """See HttpProbe."""
        super().__init__(server, check, clock, keeps=keeps)
        self._contexts = contexts
        self._context: ssl.SSLContext | None = None  # of the current check

    async def ask(self, *, may_use_idle: bool = False) -> Outcome:
        """Check once, as the HTTP probe does.

        Raises OSError or ValueError when the CA file cannot be used: the server's health stays unknown.
        """
        self._context = self._contexts.get(self._check.ca_file)
        return await super().ask(may_use_idle=may_use_idle)

    async def _open(self, deadline: Deadline) -> HttpConnection:
        """Connect, and start TLS."""
        assert self._context is not None
        context, new = self._context, HttpsConnection(self._server)
        try:
            await self._connect(new, deadline)
            await new.handshake(context, deadline)
        except BaseException:
            new.close()
            raise
        return new
