"""The command line's side of the socket: standard library only, answers as plain dicts and lists.

Every failure is an LbError with the exit code the command ends with: 5 no agent answers, 6 too late, else what the agent says.
"""

from __future__ import annotations

import http
import http.client
import json
import os
import socket
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlencode

from lbagent.defaults import DEFAULT_SOCKET
from lbagent.errors import AgentUnreachable, ConfigError, LastBackend, LbError, NotFound, Refused, TimedOut

API_PREFIX = "/v1"
DEFAULT_TIMEOUT_S = 30.0
VERIFY_TIMEOUT_S = 120.0  # the agent reads every map, between other work
MAX_DRAIN_S = 1e9
MAX_ANSWER_BYTES = 512 * 1024 * 1024  # bytes; 10,000 services of 10 backends are 25 MB


T = TypeVar("T")


class AgentUnsupported(LbError):
    """The agent says its kernel cannot do it."""

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
    """One agent. A connection per request: a command makes one or two."""

    def __init__(self, path: str = "", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.path = socket_path(path)
        self.timeout_s = timeout_s

    def services(self, namespace: str = "", name: str = "", vip: str = "") -> list[dict[str, Any]]:
        """Return the frontends in the agent's order; `vip` is ADDRESS[:PORT[/PROTOCOL]]."""
        return self._list("/services", namespace=namespace, name=name, vip=vip)

    def backends(self) -> list[dict[str, Any]]:
        """Return the backends by id."""
        return self._list("/backends")

    def set_state(
        self, addresses: list[str], state: str, *, spare_last: bool = False, **named: Any
    ) -> list[dict[str, Any]]:
        """Set the operator's state of these backends; return them as they are now.

        `named` are the other fields of NamedBackends (api/types.py). With `spare_last` it raises LastBackend where a Service
        would have no backend left.
        """
        body = {"addresses": addresses, "state": state, **_given(named)}
        answer = self._request("PUT", "/backends/state", body | ({"spare_last": True} if spare_last else {}))
        return self._expect(answer, list)

    def start_drain(
        self, addresses: list[str], timeout_s: float, *, spare_last: bool = False, **named: Any
    ) -> list[dict[str, Any]]:
        """Set these backends to maintenance, as `set_state` does, and have them drained; return them as they are now."""
        body = {"addresses": addresses, "timeout_s": min(timeout_s, MAX_DRAIN_S), **_given(named)}
        answer = self._request("PUT", "/backends/drain", body | ({"spare_last": True} if spare_last else {}))
        return self._expect(answer, list)

    def drains(self) -> list[dict[str, Any]]:
        """Return the drains of backends, flows counted now: DrainRow (api/types.py)."""
        return self._list("/drains")

    def clear_state(self, addresses: list[str], **named: Any) -> dict[str, Any]:
        """Forget what the operator set for these backends; return Cleared (api/types.py)."""
        answer = self._request("PUT", "/backends/clear-state", {"addresses": addresses, **_given(named)})
        return self._expect(answer, dict)

    def status(self) -> dict[str, Any]:
        """Return how the agent is."""
        return self._expect(self._request("GET", "/status"), dict)

    def apilb(self) -> list[dict[str, Any]]:
        """Return the instances of native mode that the host serves: ApilbRow (api/types.py). Raises NotFound without --apilb."""
        return self._list("/apilb")

    def vips(self) -> list[dict[str, Any]]:
        """Return the addresses that are to be announced: VipRow (api/types.py)."""
        return self._list("/vips")

    def why_vip(self, name: str) -> dict[str, Any]:
        """Return why an address, or a Service's addresses, are announced or not: VipAnswer (api/types.py)."""
        return self._expect(self._request("GET", f"/vips/why?{urlencode({'name': name})}"), dict)

    def verify(self) -> list[str]:
        """Return in what the maps differ from what the agent wrote and wants."""
        answer = self._expect(self._request("GET", "/verify", timeout_s=VERIFY_TIMEOUT_S), dict)
        return self._expect(answer.get("differences"), list)

    def bgp_peers(self) -> list[dict[str, Any]]:
        """Return the BGP sessions of the node."""
        return self._list("/bgp/peers")

    def wait_change(self, generation: int, timeout_s: float) -> int:
        """Return the agent's generation when it differs from `generation`, or after `timeout_s`."""
        query = urlencode({"generation": generation, "timeout_s": timeout_s})
        answer = self._request("GET", f"/wait?{query}", timeout_s=timeout_s + self.timeout_s)
        return int(self._expect(answer, dict)["generation"])

    def metrics(self) -> str:
        """Return the Prometheus text."""
        return self._exchange("GET", "/metrics", None, self.timeout_s).decode()

    def _list(self, path: str, **query: str) -> list[dict[str, Any]]:
        given = urlencode({key: value for key, value in query.items() if value}, errors="surrogateescape")
        return self._expect(self._request("GET", f"{path}?{given}" if given else path), list)

    def _request(self, method: str, path: str, body: Any = None, timeout_s: float = 0.0) -> Any:
        data = json.dumps(body, ensure_ascii=False).encode(errors="replace") if body is not None else None
        answer = self._exchange(method, API_PREFIX + path, data, timeout_s or self.timeout_s)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise self._not_an_agent() from None

    def _expect(self, answer: Any, kind: type[T]) -> T:
        if not isinstance(answer, kind):
            raise self._not_an_agent()
        return answer

    def _exchange(self, method: str, target: str, body: bytes | None, timeout_s: float) -> bytes:
        """Send one request and return the answer's body. Raises LbError."""
        connection = _Connection(self.path, timeout_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # an agent that is full answers before it has read
                connection.request(method, target, body, {"Connection": "close"})
            response = connection.getresponse()
            data = response.read(MAX_ANSWER_BYTES)
        except TimeoutError:
            raise TimedOut(
                f"the agent on unix://{self.path} did not answer within {timeout_s:g} s; what is in the kernel goes on serving;"
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
        if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise self._overrun()
        if response.status >= 300:
            raise self._problem(data)
        return data

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
