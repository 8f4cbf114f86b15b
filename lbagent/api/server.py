"""The agent's API: HTTP + JSON on a unix socket only root may open; metrics on a TCP address when asked for.

api_routes.py has the table of routes. The TCP address has /metrics, /proxyMode and /configz, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from lbagent.api import types
from lbagent.api.agent_api import AgentApi
from lbagent.api.api_routes import ROUTES, TEXT, Route
from lbagent.api.encode import (
    VIP,
    ListedBackend,
    ListedService,
    backends_used,
    json_list,
    listed_backends,
    listed_services,
)
from lbagent.api.listed_fields import BACKENDS, LISTS
from lbagent.api.named_backends import named_backends
from lbagent.api.types import (
    Cleared,
    ClearState,
    Differences,
    Generation,
    NamedBackends,
    Problem,
    SetState,
    StartDrain,
)
from lbagent.decoding_errors import DECODING_ERRORS, decoding_problem
from lbagent.errors import ConfigError, Conflict, LastBackend, LbError, NotFound, Refused, TimedOut
from lbagent.http.http_server import MAX_HEAD_BYTES, HttpServer, Request, Response
from lbagent.http.listeners import PUBLIC_LIMITS, tcp_socket
from lbagent.model.address import L3n4Addr
from lbagent.model.backend import BackendState
from lbagent.model.cooperative import run_cooperatively
from lbagent.objects.pod_reference import is_pod_reference

log = logging.getLogger(__name__)

SOCKET_MODE = 0o600
DIRECTORY_MODE = 0o755
MAX_WAIT_S = 60.0
MAX_PATH_BYTES = 107  # bytes; unix(7)
BACKLOG = 32
PROBE_S = 1.0  # for an agent that may listen on the path already
PROXY_MODE = b"lbagent"  # kube-proxy says iptables or nftables here
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LISTED = {each.record: each for each in LISTS}
_STATUS: tuple[tuple[type[LbError], int], ...] = ((ConfigError, 400), (NotFound, 404), (Refused, 409), (TimedOut, 504))


class ApiServer:
    """Serves an AgentApi. `start` binds, `close` takes the socket away again."""

    def __init__(self, view: AgentApi, path: str, metrics_address: str = "") -> None:
        self._view = view
        self._path = socket_file(path)
        self._metrics_address = metrics_address
        self._api = HttpServer(self._answer)
        self._metrics = HttpServer(self.answer_metrics, PUBLIC_LIMITS, methods=None)
        self._servers: list[asyncio.Server] = []
        self._inode: tuple[int, int] | None = None
        self._routes = {(route.method, route.path): route for route in ROUTES}
        self._public: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/metrics": self._answer,
            "/proxyMode": self._proxy_mode,
            "/configz": self._configz,
        }

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
            route = self._routes.get((request.method, request.path))
            if route is None:
                raise NotFound(f"the agent has no {request.method} {request.path}")
            return _encoded(route, await self._answer_of(route, request))
        except LbError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
            return _json(Problem(str(error), error.exit_code, isinstance(error, LastBackend)), status)
        except Exception:
            log.exception("a request failed", extra={"method": request.method, "path": request.path})
            return _json(Problem("the agent failed on this request; its log says why; nothing was changed", 1), 500)

    async def _answer_of(self, route: Route, request: Request) -> Any:
        """Return what the agent, or the method of the route here, answers to its body or the parts of its query."""
        handler = getattr(self._view, route.agent) if route.agent else getattr(self, f"_{route.name}")
        if route.body:
            answer = handler(_body(request, getattr(types, route.body)))
        else:
            answer = handler(*(request.query.get(key, default) for key, default in route.query))
        return await answer if inspect.isawaitable(answer) else answer

    async def answer_metrics(self, request: Request) -> Response:
        """Answer at the port of the metrics, as kube-proxy does at 10249: whatever the method is."""
        handler = self._public.get(request.path)
        if handler is None:
            return Response(404, b"only /metrics, /proxyMode and /configz are here\n", "text/plain; charset=utf-8")
        return await handler(Request("GET", request.path, request.query, request.body))

    async def _proxy_mode(self, _: Request) -> Response:
        return Response(200, PROXY_MODE, "text/plain; charset=utf-8")

    async def _configz(self, _: Request) -> Response:
        return Response(200, msgspec.json.encode({"lbagent": self._view.settings()}) + b"\n")

    def _services(self, namespace: str, name: str, text: str) -> Iterator[ListedService]:
        try:
            vip = VIP.parse(text) if text else None
        except ValueError as error:
            raise ConfigError(f"vip: {error}") from None
        reached = self._view.external_clusterip()
        return listed_services(self._view.state(), namespace, name, vip, external_clusterip=reached)

    async def _backends(self) -> Iterator[ListedBackend]:
        return await self._listed()

    async def _listed(self, only: Collection[L3n4Addr] | None = None) -> Iterator[ListedBackend]:
        """Return backends, all or `only` these, with flows counted now."""
        flows, states_set = await self._view.count_flows(), await self._view.states_set()
        used = await run_cooperatively(backends_used(self._view.state(), only), time.monotonic)
        return listed_backends(used, flows, states_set, self._view.backend_egress(), self._view.drains())

    async def _set_state(self, wanted: SetState) -> Iterator[ListedBackend]:
        state = BackendState.parse(wanted.state) if wanted.state else BackendState.INVALID
        named = self._to_set(wanted, state)
        if state in (BackendState.TERMINATING, BackendState.INVALID):
            raise self._not_to_set(named.every[0], wanted.state or "''")
        await self._view.set_state(named.addresses, state, pods=named.pods, spare_last=wanted.spare_last)
        return await self._listed({*named.every, *named.further})

    async def _start_drain(self, wanted: StartDrain) -> Iterator[ListedBackend]:
        if wanted.timeout_s < 0:
            raise ConfigError("timeout_s must not be negative; nothing was changed")
        named = self._to_set(wanted, BackendState.MAINTENANCE)
        await self._view.start_drain(
            named.addresses, wanted.timeout_s, pods=named.pods, further=named.further, spare_last=wanted.spare_last
        )
        return await self._listed({*named.every, *named.further})

    def _to_set(self, wanted: NamedBackends, state: BackendState) -> _ToSet:
        """Return whose state is to be set. Raises ConfigError where no backend is named, NotFound."""
        known = self._view.state().backends
        asked = named_backends(wanted, self._view.state(), known)
        addresses, pods = asked.eligible_for(state, known), asked.pods
        every = [*addresses, *(address for pod in pods for address in self._view.backends_of_pod(pod))]
        if not every:
            raise ConfigError("no backend was named; nothing was changed")
        return _ToSet(addresses, pods, every, asked.found)

    async def _clear_state(self, wanted: ClearState) -> Cleared:
        state, by_operator = self._view.state(), self._view.set_by_operator()
        single, found, pods = named_backends(wanted, state, {*state.backends, *by_operator})
        addresses = [*single, *found]
        if not addresses and not pods:
            raise ConfigError("no backend was named; nothing was changed")
        cleared = await self._view.clear_state(addresses, pods=pods)
        listed = await self._listed(
            {*addresses, *(L3n4Addr.parse(name) for name in cleared if not is_pod_reference(name))}
        )
        return Cleared(cleared, list(map(BACKENDS.row, listed)))

    def _not_to_set(self, address: L3n4Addr, word: str) -> Refused:
        """Return the refusal of a state that set-state cannot give; it names both states, as every refusal of a state does."""
        known = self._view.state().backends.get(address)
        was = f"state {known.state.text}" if known else "its state"
        return Refused(
            f"backend {address.with_protocol()}: {was} cannot become {word} by set-state; use active, maintenance or"
            " quarantined; nothing was changed"
        )

    async def _verify(self) -> Differences:
        return Differences(list(await self._view.verify()))

    async def _wait_change(self, generation: str, timeout_s: str) -> Generation:
        try:
            known, seconds = int(generation), float(timeout_s)
        except ValueError:
            raise ConfigError("generation and timeout_s must be numbers") from None
        if not math.isfinite(seconds):
            raise ConfigError("timeout_s must be a finite number")
        return Generation(await self._view.wait_change(known, max(0.0, min(seconds, MAX_WAIT_S))))


class _ToSet(NamedTuple):
    """Backends whose state is to be set: `every` one by address and of `pods`. Of `further` some may not take the state."""

    addresses: list[L3n4Addr]
    pods: list[str]
    every: list[L3n4Addr]
    further: list[L3n4Addr]


Body = TypeVar("Body", bound=NamedBackends)


def _body(request: Request, kind: type[Body]) -> Body:
    """Return a request's body as a record. Raises ConfigError."""
    try:
        return msgspec.json.decode(request.body, type=kind)
    except DECODING_ERRORS as error:
        problem = decoding_problem(error)
        raise ConfigError(f"the request's body is not a {kind.command}: {problem}; nothing was changed") from None


def _encoded(route: Route, answer: Any) -> Response:
    """Return what a route answers, as its row says."""
    if route.answer == TEXT:
        return Response(200, (piece.encode() for piece in answer), METRICS_TYPE)
    if not route.many:
        return _json(answer)
    listed = _LISTED.get(route.answer)
    return Response(200, json_list(map(listed.row, answer) if listed else answer))


def _json(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(value) + b"\n")


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
        return  # the second is said when the socket is made
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
