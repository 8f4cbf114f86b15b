"""The command line's side of the socket: standard library only, answers as plain dicts and lists.

Every failure is an LbError with the exit code the command ends with: 5 no agent answers, 6 too late, else the answer's.
"""

from __future__ import annotations

import http
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from lbagent.api.capabilities import CAPABILITIES, route_of
from lbagent.api.capability import CONFIGZ
from lbagent.defaults import DEFAULT_SOCKET
from lbagent.errors import AgentUnreachable, ConfigError, LastBackend, LbError, NotFound, Refused, TimedOut

if TYPE_CHECKING:
    from lbagent.api.capability import Route

DEFAULT_TIMEOUT_S = 30.0
VERIFY_TIMEOUT_S = 120.0  # the agent reads every map, between other work
MAX_DRAIN_S = 1e9
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # bytes; 10,000 services of 10 backends are 25 MB


T = TypeVar("T")
_NO_QUERY: Mapping[str, object] = {}


class AgentUnsupported(LbError):
    """The agent reports that its kernel cannot do it."""

    exit_code = 77


_ERRORS: dict[int, type[LbError]] = {
    2: ConfigError,
    3: NotFound,
    4: Refused,
    5: AgentUnreachable,
    6: TimedOut,
    77: AgentUnsupported,
}


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("agent", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not given."""
    return {name: value for name, value in fields.items() if value}


def socket_path(text: str = "") -> str:
    """Return the path of `PATH` or `unix://PATH`; '' is $LBAGENT_SOCKET, else the default."""
    return (text or os.environ.get("LBAGENT_SOCKET", "") or DEFAULT_SOCKET).removeprefix("unix://")


class AgentClient:
    """One agent. A connection per request: a command makes one or two.

    It has a method for each route of capabilities/; those that are written here do more than to send and return.
    """

    def __init__(self, path: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = socket_path(path)
        self.timeout_s = timeout_s

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """Have mypy take the methods that `_add_methods` makes."""

    def set_state(
        self, addresses: list[str], state: str, *, spare_last: bool = False, **named: Any
    ) -> list[dict[str, Any]]:
        """Set the operator's state of these backends; return them as they are now.

        `named` are the other fields of NamedBackends (api/named_backends.py). With `spare_last` it raises LastBackend where
        a Service would have no backend left.
        """
        body = {"addresses": addresses, "state": state, **_given(named)}
        rows: list[dict[str, Any]] = self._send("set_state", body | ({"spare_last": True} if spare_last else {}))
        return rows

    def start_drain(
        self, addresses: list[str], timeout_s: float, *, spare_last: bool = False, **named: Any
    ) -> list[dict[str, Any]]:
        """Set these backends to maintenance, as `set_state` does, and have them drained; return them as they are now."""
        body = {"addresses": addresses, "timeout_s": min(timeout_s, MAX_DRAIN_S), **_given(named)}
        rows: list[dict[str, Any]] = self._send("start_drain", body | ({"spare_last": True} if spare_last else {}))
        return rows

    def end_flows(self, addresses: list[str]) -> list[dict[str, Any]]:
        """End the flows of backends that take no new ones; return them as they are now."""
        rows: list[dict[str, Any]] = self._send("end_flows", {"addresses": addresses})
        return rows

    def clear_state(self, addresses: list[str], **named: Any) -> dict[str, Any]:
        """Forget what the operator set for these backends; return Cleared (api/named_backends.py)."""
        cleared: dict[str, Any] = self._send("clear_state", {"addresses": addresses, **_given(named)})
        return cleared

    def verify(self) -> list[str]:
        """Return in what the maps differ from what the agent wrote and wants."""
        answer = self._request(route_of("verify"), timeout_s=VERIFY_TIMEOUT_S)
        return self._expect(answer.get("differences"), list)

    def differences(self, renderer: str = "") -> list[dict[str, Any]]:
        """Return in what data planes differ from what the agent wrote: DifferenceRow (api/plane_differences.py)."""
        query = {"renderer": renderer}
        return self._expect(self._request(route_of("differences"), query, timeout_s=VERIFY_TIMEOUT_S), list)

    def object_differences(self, renderer: str = "", *, repair: bool = False) -> list[dict[str, Any]]:
        """Return in what data planes differ from the objects of a new list; with `repair` have that repaired."""
        if repair:
            request, given = route_of("repair_objects"), {"body": {"renderer": renderer}}
        else:
            request, given = route_of("object_differences"), {"query": {"renderer": renderer}}
        return self._expect(self._request(request, **given, timeout_s=VERIFY_TIMEOUT_S), list)

    def repair(self, renderer: str = "") -> list[dict[str, Any]]:
        """Have that repaired; return it, with whether it is."""
        body = {"renderer": renderer}
        return self._expect(self._request(route_of("repair"), body=body, timeout_s=VERIFY_TIMEOUT_S), list)

    def reset_shadow(self) -> dict[str, Any]:
        """Return the report of --shadow, whose counts begin again."""
        report: dict[str, Any] = self._send("reset_shadow", {"reset": True})
        return report

    def request_migration(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Have an agent with --shadow serve, or only compare again (MigrationRequest); return its state before."""
        before: dict[str, Any] = self._send("request_migration", wanted)
        return before

    def explain(self, request: dict[str, Any], timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return what would happen to packets: of ExplainRequest, a list of Explanation (targets/explanation.py)."""
        answers: list[dict[str, Any]] = self._request(route_of("explain"), body=request, timeout_s=timeout_s)
        return answers

    def wait_change(self, generation: int, timeout_s: float) -> int:
        """Return the agent's generation when it differs from `generation`, or after `timeout_s`."""
        query = {"generation": generation, "timeout_s": timeout_s}
        return int(self._request(route_of("wait_change"), query, timeout_s=timeout_s + self.timeout_s)["generation"])

    def settings(self) -> dict[str, Any]:
        """Return the settings in force, by key. Raises LbError, NotFound from an agent of an earlier version."""
        try:
            return self._expect(json.loads(self._exchange("GET", CONFIGZ, None, self.timeout_s))["lbagent"], dict)
        except (ValueError, TypeError, KeyError):
            raise self._not_an_agent() from None

    def _send(self, name: str, body: dict[str, Any]) -> Any:
        return self._request(route_of(name), body=body)

    @contextmanager
    def stream(self, name: str, query: Mapping[str, object], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        """Open the stream of a route; its lines can be read in the block, each within `timeout_s`. Raises LbError."""
        route = route_of(name)
        with self._response(route.method, f"{route.path}?{urlencode(query)}", None, timeout_s) as response:
            yield response

    def _request(
        self, route: Route[Any], query: Mapping[str, object] = _NO_QUERY, body: Any = None, timeout_s: float = 0.0
    ) -> Any:
        """Send a request and return its answer: a list, a dict, a text. Raises LbError."""
        given = {key: text for key, value in query.items() if (text := str(value))}
        target = f"{route.path}?{urlencode(given, errors='surrogateescape')}" if given else route.path
        data = json.dumps(body, ensure_ascii=False).encode(errors="replace") if body is not None else None
        answer = self._exchange(route.method, target, data, timeout_s or self.timeout_s)
        if route.is_text:
            return answer.decode()
        try:
            return self._expect(json.loads(answer), list if route.many else dict)
        except (ValueError, RecursionError):
            raise self._not_an_agent() from None

    def _expect(self, answer: Any, kind: type[T]) -> T:
        if not isinstance(answer, kind):
            raise self._not_an_agent()
        return answer

    def _exchange(self, method: str, target: str, body: bytes | None, timeout_s: float) -> bytes:
        """Send one request and return the answer's body. Raises LbError."""
        with self._response(method, target, body, timeout_s) as response:
            return response.read(MAX_ANSWER_BYTES)

    @contextmanager
    def _response(
        self, method: str, target: str, body: bytes | None, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Send one request; the answer, whose status is good, can be read in the block. Raises LbError."""
        connection = _Connection(self.path, timeout_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # an agent that is full answers before it has read
                connection.request(method, target, body, {"Connection": "close"})
            response = connection.getresponse()
            if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
                raise self._overrun()
            if response.status >= 300:
                raise self._problem(response.read(MAX_ANSWER_BYTES))
            yield response
        except TimeoutError:
            raise TimedOut(
                f"the agent on unix://{self.path} did not answer within {timeout_s:g} s; what is in the kernel continues to serve;"
                " is the agent stopped or overloaded?"
            ) from None
        except BlockingIOError:  # its queue is full
            raise self._overrun() from None
        except PermissionError:
            raise LbError(f"no permission to open the agent's socket unix://{self.path}; run as root") from None
        except OSError as error:
            raise self._unreachable(error) from None
        except http.client.HTTPException:
            raise self._not_an_agent() from None
        finally:
            connection.close()

    def _overrun(self) -> AgentUnreachable:
        return AgentUnreachable(f"the agent on unix://{self.path} has too many connections; end some, or try again")

    def _unreachable(self, error: OSError) -> AgentUnreachable:
        reason = error.strerror or str(error)
        return AgentUnreachable(
            f"no agent answers on unix://{self.path}: {reason}; start one with `lbagent agent`, or name its socket "
            "with --socket or LBAGENT_SOCKET"
        )

    def _problem(self, data: bytes) -> LbError:
        try:
            problem = json.loads(data)
            text, code = str(problem["error"]), int(problem["exit_code"])
            is_last = bool(problem.get("last_backend"))
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return self._not_an_agent()
        if is_last:
            return LastBackend(text)
        return _ERRORS.get(code, LbError)(text)

    def _not_an_agent(self) -> AgentUnreachable:
        return AgentUnreachable(
            f"the process that answers on unix://{self.path} is not an lbagent agent of this version"
        )


def _add_methods() -> None:
    """Give AgentClient a method for each route that has none: it takes the parts of the query, in this order or by name."""
    for routes in CAPABILITIES.values():
        for name in routes:
            if not hasattr(AgentClient, name):
                setattr(AgentClient, name, _method(name))


def _method(name: str) -> Callable[..., Any]:
    def ask(client: AgentClient, *words: object, **named: object) -> Any:
        route = route_of(name)
        keys = [key for key, _ in route.query]
        if len(words) > len(keys) or not named.keys() <= set(keys):
            raise TypeError(f"{name}() takes {', '.join(keys) or 'nothing'}")
        return client._request(route, dict(zip(keys, words, strict=False)) | named)  # noqa: SLF001  # it is a method

    return ask


_add_methods()
