"""The agent's API: HTTP + JSON on a unix socket only root may open; metrics on a TCP address when asked for.

The routes are those of capabilities/. The TCP address has /metrics, /proxyMode and /configz, with --ui the status page
(status_page.py), and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from lbagent.api.capabilities import every_capability
from lbagent.api.capability import CONFIGZ, Bound, ListedFields, Route
from lbagent.api.json_list import json_list
from lbagent.api.named_backends import NamedBackends
from lbagent.api.node_summary import TooManyStreams
from lbagent.api.status_page import EVENTS_TYPE, NO_STORE, StatusPage
from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.errors import ConfigError, Conflict, LastBackend, LbError, NotFound, Refused, TimedOut
from lbagent.http.http_server import MAX_HEAD_BYTES, Headers, HttpServer, Request, Response
from lbagent.http.listeners import PUBLIC_LIMITS, tcp_socket
from lbagent.model.address import L3n4Addr

log = logging.getLogger(__name__)

SOCKET_MODE = 0o600
DIRECTORY_MODE = 0o755
MAX_PATH_BYTES = 107  # bytes; unix(7)
BACKLOG = 32
PROBE_S = 1.0  # for an agent that may listen on the path already
PROXY_MODE = b"lbagent"  # kube-proxy says iptables or nftables here
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATUS: tuple[tuple[type[LbError], int], ...] = (
    (ConfigError, 400),
    (NotFound, 404),
    (Refused, 409),
    (TooManyStreams, 503),
    (TimedOut, 504),
)


class Problem(msgspec.Struct, omit_defaults=True):
    """Every answer that is not 2xx."""

    error: str  # one sentence
    exit_code: int
    last_backend: bool = False  # a Service would have no backend left; without `spare_last` it is done


class _Served(NamedTuple):
    """A route, and the part that has the answer."""

    route: Route[Any]
    part: Any


class ApiServer:
    """Serves the capabilities that are bound. `start` listens, `close` takes the socket away again."""

    def __init__(
        self,
        bound: Sequence[Bound],
        settings: Callable[[], Mapping[str, object]],
        path: str,
        metrics_address: str = "",
        ui_hosts: Sequence[str] | None = None,
    ) -> None:
        """`settings` returns the configuration in force, by key, for /configz.

        `ui_hosts`: further names of the metrics address, by which browsers may reach the status page; None: there is no page.
        """
        self._routes = {
            (route.method, route.path): _Served(route, part)
            for capability, part in bound
            for route in capability.routes
        }
        self._settings = settings
        self._path = socket_file(path)
        self._metrics_address = metrics_address
        self._api = HttpServer(self._answer)
        self._metrics = HttpServer(self.answer_metrics, PUBLIC_LIMITS, methods=None)
        self._servers: list[asyncio.Server] = []
        self._inode: tuple[int, int] | None = None
        self._public: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/metrics": self._answer,
            "/proxyMode": self._proxy_mode,
            CONFIGZ: self._configz,
        }
        self._page = StatusPage(self._answer, ui_hosts) if ui_hosts is not None else None

    async def start(self) -> None:
        """Listen. Raises Conflict when another agent answers on the path, ConfigError when it cannot be used."""
        sock = _unix_socket(self._path)
        found = os.stat(self._path)
        self._inode = (found.st_dev, found.st_ino)
        self._servers.append(await asyncio.start_unix_server(self._api.connected, sock=sock, limit=MAX_HEAD_BYTES))
        if self._metrics_address:
            try:
                sock = _tcp_socket(self._metrics_address)
            except ConfigError:
                await self.close()
                raise
            self._servers.append(await asyncio.start_server(self._metrics.connected, sock=sock, limit=MAX_HEAD_BYTES))

    @property
    def metrics_port(self) -> int:
        """The TCP port metrics are served on, 0 when they are not."""
        return int(self._servers[1].sockets[0].getsockname()[1]) if len(self._servers) > 1 else 0

    async def close(self) -> None:
        """Stop listening and end open connections; the path goes when it still is ours."""
        for server in self._servers:
            server.close()
        await self._api.close()
        await self._metrics.close()
        self._servers.clear()
        with contextlib.suppress(OSError):
            found = os.lstat(self._path)
            if (found.st_dev, found.st_ino) == self._inode:
                os.unlink(self._path)

    async def _answer(self, request: Request) -> Response:
        try:
            if (request.method, request.path) == ("GET", CONFIGZ):
                return await self._configz(request)
            found = self._routes.get((request.method, request.path))
            if found is None:
                raise NotFound(_why_not_served(request))
            return _encoded(found.route, await self._answer_of(found, request))
        except LbError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
            return _json(Problem(str(error), error.exit_code, isinstance(error, LastBackend)), status)
        except Exception:
            log.exception("a request failed", extra={"method": request.method, "path": request.path})
            return _json(Problem("the agent failed on this request; its log says why; nothing was changed", 1), 500)

    async def _answer_of(self, served: _Served, request: Request) -> Any:
        """Return what the part answers to the body or to the texts of the query."""
        route, part = served
        if route.body:
            answer = route.answer(part, _body(request, _record(route.body)))
        else:
            answer = route.answer(part, *(request.query.get(key, default) for key, default in route.query))
        return await answer if inspect.isawaitable(answer) else answer

    async def answer_metrics(self, request: Request) -> Response:
        """Answer at the port of the metrics, as kube-proxy does at 10249: whatever the method is."""
        if self._page is not None and request.path in StatusPage.PATHS:
            return await self._page.answer(request)
        handler = self._public.get(request.path)
        if handler is None:
            return Response(404, b"only /metrics, /proxyMode and /configz are here\n", "text/plain; charset=utf-8")
        return await handler(Request("GET", request.path, request.query, request.body))

    async def _proxy_mode(self, _: Request) -> Response:
        return Response(200, PROXY_MODE, "text/plain; charset=utf-8")

    async def _configz(self, _: Request) -> Response:
        return Response(200, msgspec.json.encode({"lbagent": self._settings()}) + b"\n")


def _why_not_served(request: Request) -> str:
    """Return why this agent has no such route: a capability that is off has its own words."""
    for capability in every_capability():
        if any((route.method, route.path) == (request.method, request.path) for route in capability.routes):
            return capability.off
    return f"the agent has no {request.method} {request.path}"


@cache
def _record(path: str) -> Any:
    """Import a record that a row names as MODULE:NAME."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _body(request: Request, kind: type[NamedBackends]) -> NamedBackends:
    """Return a request's body as a record. Raises ConfigError."""
    try:
        return msgspec.json.decode(request.body, type=kind)
    except DECODING_ERRORS as error:
        problem = decoding_problem(error)
        raise ConfigError(f"the request's body is not a {kind.command}: {problem}; nothing was changed") from None


def _encoded(route: Route[Any], answer: Any) -> Response:
    """Return what a route answers, as its row says."""
    if route.is_stream:
        return Response(200, answer, EVENTS_TYPE, NO_STORE)
    if route.is_text:
        return Response(200, (piece.encode() for piece in answer), METRICS_TYPE)
    if not route.many:
        return _json(answer, headers=NO_STORE if route.no_store else ())
    listed = route.record
    return Response(200, json_list(map(listed.row, answer) if isinstance(listed, ListedFields) else answer))


def _json(value: msgspec.Struct, status: int = 200, headers: Headers = ()) -> Response:
    return Response(status, msgspec.json.encode(value) + b"\n", headers=headers)


def socket_file(text: str) -> str:
    """Return the absolute path of `PATH` or `unix://PATH`."""
    return os.path.abspath(text.removeprefix("unix://")) if text else ""


def require_socket(path: str) -> None:
    """Refuse a path no socket can be at, before anything is done. Raises ConfigError, Conflict."""
    draft = _draft(path)
    if not path or max(len(os.fsencode(path)), len(os.fsencode(draft))) > MAX_PATH_BYTES:
        most = MAX_PATH_BYTES - max(0, len(os.fsencode(draft)) - len(os.fsencode(path)))
        raise ConfigError(f"--socket {path!r}: give a path of 1 to {most} bytes; the agent did not start")
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return  # the second is reported when the socket is made
    except OSError as error:
        raise ConfigError(f"--socket {path}: {error.strerror}; the agent did not start") from None
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f"--socket {path}: a {'folder' if stat.S_ISDIR(found.st_mode) else 'file'} that is not a socket is there; remove it or"
            " give another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass  # a process listens there and is busy
    raise Conflict(f"--socket {path}: another agent answers there; stop it or give another path")


def _draft(path: str) -> str:
    """Return where the socket is made before it gets its name: beside it, in few bytes."""
    return os.path.join(os.path.dirname(path), f".{os.getpid()}")


def _unix_socket(path: str) -> socket.socket:
    """Return a listening socket at `path`, mode 0600 from its first moment, in place of one that no process listens on."""
    require_socket(path)
    draft = _draft(path)
    try:
        os.makedirs(os.path.dirname(path), mode=DIRECTORY_MODE, exist_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        try:
            sock.bind(draft)
            os.chmod(draft, SOCKET_MODE)  # before listen: no client could connect until now
            sock.listen(BACKLOG)
            os.rename(draft, path)  # replaces a stale socket in one step
        except OSError:
            sock.close()
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
    except OSError as error:
        raise ConfigError(f"--socket {path}: {error.strerror or error}; the agent did not start") from None
    sock.setblocking(False)
    return sock


def _tcp_socket(text: str) -> socket.socket:
    """Return a listening TCP socket for ADDRESS:PORT. Raises ConfigError."""
    try:
        address = L3n4Addr.parse(text)
    except ValueError as error:
        raise ConfigError(f"--metrics-address: {error}") from None
    try:
        return tcp_socket(address)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)  # strerror tells the address once more
        raise ConfigError(f"--metrics-address {text}: {reason}; the agent did not start") from None
