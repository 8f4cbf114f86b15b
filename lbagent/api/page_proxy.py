"""`lbagent ui`: the status page without a port of the agent. It reads summaries from the agent's Unix socket, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from http import HTTPStatus

from lbagent.api.client import AgentClient
from lbagent.api.node_summary import SummaryEvents, TooManyStreams
from lbagent.api.status_page import EVENTS, EVENTS_TYPE, NO_STORE, StatusPage
from lbagent.errors import ConfigError, LbError
from lbagent.http.http_server import MAX_HEAD_BYTES, HttpServer, Request, Response
from lbagent.http.listeners import PUBLIC_LIMITS, tcp_socket
from lbagent.model.address import L3n4Addr

ASK_S = 5.0  # for the agent to answer


class PageProxy:
    """Serves the page and its two requests at one address."""

    def __init__(self, socket: str, hosts: Sequence[str] = ()) -> None:
        """`socket`: of the agent, '' the default one. `hosts`: further names of the listener."""
        self._client = AgentClient(socket, ASK_S)
        self._events = SummaryEvents(self._summary)
        self._page = StatusPage(self._answer, hosts)

    async def run(self, listen: str, started: Callable[[str], object]) -> None:
        """Serve until cancelled; call `started` with the page's URL. Raises ConfigError, LbError."""
        try:
            address = L3n4Addr.parse(listen)
        except ValueError as error:
            raise ConfigError(f"--listen: {error}") from None
        try:
            sock = tcp_socket(address)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise LbError(f"--listen {listen}: {reason}; give another address, or end what listens there") from None
        http = HttpServer(self._dispatch, PUBLIC_LIMITS, methods=None)
        server = await asyncio.start_server(http.connected, sock=sock, limit=MAX_HEAD_BYTES)
        host, port = sock.getsockname()[:2]
        started(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")
        try:
            await server.serve_forever()
        finally:
            await http.close()

    async def _dispatch(self, request: Request) -> Response:
        if request.path in StatusPage.PATHS:
            return await self._page.answer(request)
        return Response(HTTPStatus.NOT_FOUND, b"only the page is here: /\n", "text/plain; charset=utf-8")

    async def _answer(self, request: Request) -> Response:
        try:
            if request.path == EVENTS:
                return Response(HTTPStatus.OK, self._events.stream(), EVENTS_TYPE, NO_STORE)
            return Response(HTTPStatus.OK, await self._summary() + b"\n", headers=NO_STORE)
        except TooManyStreams as error:
            return _problem(HTTPStatus.SERVICE_UNAVAILABLE, error)
        except LbError as error:
            return _problem(HTTPStatus.BAD_GATEWAY, error)

    async def _summary(self) -> bytes:
        """Return the agent's summary as JSON. Raises LbError."""
        found = await asyncio.to_thread(self._client.summary)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def _problem(status: HTTPStatus, error: LbError) -> Response:
    body = json.dumps({"error": str(error), "exit_code": error.exit_code}, ensure_ascii=False).encode()
    return Response(status, body + b"\n", headers=NO_STORE)
