"""Requests to the API server: the only module that uses the package `kubernetes`, of which it needs configuration and transport.

Its generated classes are not loaded (1.2 s and 26 MiB), answers are raw bytes. Every failure is a `ServerUnreachable` or an
`ApiError`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from lbagent import partial_imports
from lbagent.decoding_errors import DECODING_ERRORS
from lbagent.errors import LbError
from lbagent.kernel.private_folder import make_private
from lbagent.kernel.regular_file import check_regular
from lbagent.kube import credentials_command
from lbagent.kube.kube_settings import KubeSettings
from lbagent.kube.server_contact import ServerContact

CONNECT_S = 5.0
CREDENTIALS_S = 30.0  # a kubeconfig may have a command that prints them
CREDENTIALS = "kube-credentials"  # folder below the state directory
MAX_RETRY_AFTER_S = 300.0
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 15,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
}  # s, s, probes: 30 s until it is dead
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"  # RFC 7386
STRATEGIC_PATCH = "application/strategic-merge-patch+json"  # Kubernetes' own: adds to lists, removes from them
OUT_OF_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


class ServerUnreachable(LbError):
    """No answer: no connection, or one that broke or stopped sending."""


class ApiError(LbError):
    """The server answered with an error. `retry_after_s` is 0 if the answer has no time.

    `causes` are the words of metav1.StatusCause, such as ResourceVersionTooLarge.
    """

    def __init__(
        self, status: int, message: str = "", retry_after_s: float = 0.0, causes: frozenset[str] = frozenset()
    ) -> None:
        known = {each.value: each.phrase for each in HTTPStatus}
        super().__init__(f"{status} {known.get(status, '')}".strip() + (f": {message}" if message else ""))
        self.status = status
        self.retry_after_s = min(retry_after_s, MAX_RETRY_AFTER_S)
        self.causes = causes


class _Cause(Struct, gc=False):
    reason: str = ""


class _Details(Struct, gc=False):
    causes: list[_Cause] | None = None


class Status(Struct, gc=False):
    """metav1.Status."""

    kind: str = ""
    code: int = 0
    message: str = ""
    details: _Details | None = None

    @property
    def causes(self) -> frozenset[str]:
        """Why the request failed, as text."""
        return frozenset(each.reason for each in (self.details and self.details.causes) or ())


class Answer:
    """A good answer whose body has not been read yet."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw  # aiohttp.ClientResponse

    async def read(self) -> bytes:
        """Return the whole body."""
        data: bytes = await self._raw.read()
        return data

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """Yield whole lines as they arrive, those of one chunk together; the caller may clear each list.

        The rest of a line after a broken connection is dropped.
        """
        rest: list[bytes] = []
        chunks = self._raw.content.iter_any()
        while (lines := _whole_lines(rest, await anext(chunks, b""))) is not None:
            if lines:
                yield lines
            del lines  # while it waits for the next ones: those of a list are some MiB


def _whole_lines(rest: list[bytes], chunk: bytes) -> list[bytes] | None:
    """Return the lines that a chunk completes, None at the end of all (b""). `rest` holds the incomplete line, before and after."""
    if not chunk:
        return None
    first, *others = chunk.split(b"\n")
    rest.append(first)
    if not others:
        return []
    lines = [line for line in (b"".join(rest), *others[:-1]) if line]
    rest[:] = others[-1:]
    return lines


class _Connection:
    """An ApiClient, which stays open until its last reader is done."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.readers = 0
        self.is_retired = False

    async def close_if_unused(self) -> None:
        if self.is_retired and not self.readers:
            await self.client.close()


class KubeClient:
    """Sends requests to the server of the settings. After a rejection or time-out it reads the credentials again and reconnects."""

    def __init__(self, settings: KubeSettings, contact: ServerContact | None = None) -> None:
        """`contact` is shared by the clients of one server."""
        self._settings = settings
        self.contact = contact or ServerContact()
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._has_connected = False

    @asynccontextmanager
    async def get(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncIterator[Answer]:
        """Open a GET. A server without data for `silence_s` counts as gone, also while the body is read.

        Raises ServerUnreachable, and ApiError for a status of 400 or above.
        """
        async with self._send("GET", path, query, None, silence_s) as answer:
            yield answer

    async def post(self, path: str, body: Mapping[str, Any], *, silence_s: float) -> bytes:
        """Create an object; return its new form. Raises the errors of `get`."""
        return await self._write("POST", path, body, JSON, silence_s)

    async def put(self, path: str, body: Mapping[str, Any], *, silence_s: float) -> bytes:
        """Replace an object; return its new form. Raises the errors of `get`."""
        return await self._write("PUT", path, body, JSON, silence_s)

    async def patch(self, path: str, body: Mapping[str, Any], *, kind: str = MERGE_PATCH, silence_s: float) -> bytes:
        """Change an object by a patch of this content type; return its new form. Raises the errors of `get`."""
        return await self._write("PATCH", path, body, kind, silence_s)

    async def delete(self, path: str, *, silence_s: float, options: Mapping[str, Any] | None = None) -> None:
        """Delete an object; `options` are metav1.DeleteOptions. Raises the errors of `get`."""
        async with self._send("DELETE", path, {}, options, silence_s) as answer:
            await answer.read()

    async def _write(self, method: str, path: str, body: Mapping[str, Any], kind: str, silence_s: float) -> bytes:
        async with self._send(method, path, {}, body, silence_s, kind) as answer:
            return await answer.read()

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        silence_s: float,
        kind: str = JSON,
    ) -> AsyncIterator[Answer]:
        connection = await self._connect()
        connection.readers += 1
        raw = None
        try:
            with _as_unreachable():
                raw = await self._ask(connection.client, method, path, query, body, silence_s, kind)
                if raw.status >= HTTPStatus.BAD_REQUEST:
                    raise _api_error(raw, await raw.read())
                self.contact.note_success()
                yield Answer(raw)
        except ServerUnreachable as error:
            self._retire(connection)  # its idle sockets may be dead, too: a request on one of them would hang
            if raw is None:
                raise ServerUnreachable(f"{error}{self._settings.server_place}") from None
            raise
        except ApiError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._retire(connection)
            raise
        finally:
            if raw is not None:
                raw.close()
            connection.readers -= 1
            await connection.close_if_unused()

    async def connect(self) -> None:
        """Load the package and read the credentials now, which takes seconds, not in a request. Raises ServerUnreachable."""
        await self._connect()

    async def close(self) -> None:
        """Close what is open."""
        if self._connection is not None:
            await self._connection.client.close()
            self._connection = None

    async def _ask(
        self,
        client: Any,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        silence_s: float,
        kind: str,
    ) -> Any:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, connect=2 * CONNECT_S, sock_connect=CONNECT_S, sock_read=silence_s)
        words = await client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": JSON} | ({"Content-Type": kind} if body else {}),
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await client.call_api(*words, _preload_content=False, _request_timeout=timeout)
        _probe_when_idle(answer.response)
        return answer.response

    async def _connect(self) -> _Connection:
        async with self._connecting:  # all reflectors begin at once: one of them reads the credentials
            if self._connection is None:
                await asyncio.to_thread(_load_package)  # 0.8 s of imports, once
                self._forget_old_credentials()
                with _as_unreachable():
                    self._connection = _Connection(await _open(self._settings))
            return self._connection

    def _forget_old_credentials(self) -> None:
        """Remove the files of a killed agent; this one's are removed when it ends."""
        if self._settings.state_dir and not self._has_connected:
            shutil.rmtree(os.path.join(self._settings.state_dir, CREDENTIALS), ignore_errors=True)
        self._has_connected = True

    def _retire(self, connection: _Connection) -> None:
        connection.is_retired = True
        if self._connection is connection:
            self._connection = None


async def _open(settings: KubeSettings) -> Any:
    """Read the credentials and return an ApiClient. Raises the errors that `_as_unreachable` maps."""
    try:
        async with asyncio.timeout(CREDENTIALS_S):
            return await _new_client(settings)
    except TimeoutError:
        raise ServerUnreachable(f"no credentials within {CREDENTIALS_S:g} s") from None
    except Exception as error:  # noqa: BLE001 - the package uses a file before it checks it: any exception may come
        raise ServerUnreachable(f"the credentials cannot be used: {' '.join(str(error).split())}") from None


async def _new_client(settings: KubeSettings) -> Any:
    config, client = _load_package()
    configuration = client.Configuration(client_session_kwargs={"trust_env": _has_proxy()})
    configuration.retries = None  # pauses are the reflector's
    if settings.kubeconfig:
        check_regular(settings.kubeconfig)
        await config.load_kube_config(
            config_file=settings.kubeconfig,
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=_credentials_folder(settings),
        )
    else:
        config.load_incluster_config(client_configuration=configuration)
    return client.ApiClient(configuration)


def _has_proxy() -> bool:
    """Return whether the environment sets a proxy.

    Only then aiohttp reads it, and ~/.netrc: it does so for each request in two other threads, a fourth of the cost of a write.
    """
    from urllib.request import getproxies  # a module of 0.05 s, which aiohttp has already loaded

    return bool(getproxies())


def _credentials_folder(settings: KubeSettings) -> str | None:
    """Return the folder for certificates and keys that a kubeconfig has as text: OpenSSL reads files only. Raises OSError."""
    if not settings.state_dir:
        return None
    folder = os.path.join(settings.state_dir, CREDENTIALS)
    make_private(folder)
    return folder


class _NoType(Generic[TypeVar("_T")]):  # type: ignore[misc]
    """Replaces types of the package that no request here uses."""


# Types of answers of its generated classes: with pydantic, whose 40 modules take 8 MiB and 0.05 s.
_UNUSED: Mapping[str, Mapping[str, object]] = {
    "pydantic": {"SecretStr": _NoType},
    "kubernetes.aio.client.api_response": {"ApiResponse": _NoType, "T": TypeVar("T")},
}


def _load_package() -> tuple[Any, Any]:
    partial_imports.put_in_place("kubernetes", "kubernetes.aio")
    with partial_imports.stand_ins(_UNUSED):
        from kubernetes.aio import client, config
        from kubernetes.aio.config import exec_provider, kube_config

    class Command(exec_provider.ExecProvider):  # type: ignore[misc]
        """Reads the settings of the kubeconfig like the package; the command is run by credentials_command.py."""

        async def run(self, *_: object) -> dict[str, Any]:
            """Return the credentials."""
            return await credentials_command.run(self.args, self.env, self.api_version)

    kube_config.ExecProvider = Command
    return config, client


@contextmanager
def _as_unreachable() -> Iterator[None]:
    """Map the errors of the package, its transport and the system to one message."""
    import aiohttp
    from kubernetes.aio.config.config_exception import ConfigException

    try:
        yield
    except TimeoutError:
        raise ServerUnreachable("it does not answer in time") from None
    except aiohttp.ClientConnectorCertificateError as error:
        raise ServerUnreachable(f"{error}{_clock_hint(error.certificate_error)}") from None
    except (aiohttp.ClientError, ConfigException, OSError) as error:
        raise ServerUnreachable(str(error) or type(error).__name__) from None


def _probe_when_idle(raw: Any) -> None:
    """Enable TCP keepalive: a watch may be without data for a minute."""
    connection = raw.connection  # None: the answer is whole
    own = connection.transport.get_extra_info("socket") if connection and connection.transport else None
    if own is not None:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, number in KEEPALIVE.items():
            own.setsockopt(socket.IPPROTO_TCP, option, number)


def _clock_hint(error: Exception) -> str:
    """Return the time of this node's clock, for a certificate outside its period of validity; '' for other errors."""
    if getattr(error, "verify_code", 0) not in OUT_OF_TIME:
        return ""
    return f"; this node's clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: if that is wrong, set it"


def _api_error(raw: Any, body: bytes) -> ApiError:
    status = Status()
    with suppress(*DECODING_ERRORS):
        status = msgspec.json.decode(body, type=Status)
    after = raw.headers.get("Retry-After", "")
    message = status.message if status.kind == "Status" else ""
    return ApiError(raw.status, message, float(after) if after.isdecimal() else 0.0, status.causes)
