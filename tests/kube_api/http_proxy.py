"""An HTTPS proxy in front of the real API server that parses lists and watches: it answers itself, replays old lists, and reorders events.

It has the server's own certificate, so a kubeconfig differs only in the port.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import random
import socket
import ssl
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.kube_api.control_plane import ControlPlane, Obj, ServerConnection
from tests.kube_api.proxy import RST

TOGETHER_S = 0.3  # events of this period are reordered together
KEPT = ("Authorization", "Accept")
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
KEPT_OF_WRITES = (*KEPT, "Content-Type")
END = "k8s.io/initial-events-end"


def resource_of(path: str) -> tuple[str, str]:
    """Return a path's resource, with its subresource, and the name of the object ('': all)."""
    parts = path.strip("/").split("/")
    at = parts.index("namespaces") + 2 if "namespaces" in parts[:-2] else 2 if parts[0] == "api" else 3
    resource, name, *sub = [*parts[at:], ""][: max(2, len(parts) - at)]
    return "/".join([resource, *sub]), name


class Write(NamedTuple):
    """A request that changes something; `path` without its query."""

    method: str
    path: str
    body: Obj

    @property
    def resource(self) -> str:
        """Its resource: services/status, events, leases."""
        return resource_of(self.path)[0]


class WriteFault(NamedTuple):
    """A fault of the next write to a resource: a status instead of an answer, or (0) a reset, before or after it was forwarded.

    `silent`: no answer, until the client closes the connection.
    """

    resource: str
    status: int = 0
    passed_on: bool = False
    headers: dict[str, str] = {}
    silent: bool = False


class HttpProxy:
    """Listens on 127.0.0.1. Settings apply to later requests; `requests` counts them by resource."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.requests: Counter[str] = Counter()
        self.answers: deque[tuple[int, dict[str, str]]] = deque()  # status and headers, returned to the next requests
        self.expired: set[str] = set()  # resources whose next resumed watch gets 410
        self.stale: dict[str, list[bytes]] = {}  # the next list of a resource, as a stream
        self.lists: dict[str, list[bytes]] = {}  # the last list of each resource, as streamed
        self.disorders = False  # each event twice, in another order
        self.disordered: defaultdict[str, int] = defaultdict(int)  # events in another order than the server's
        self.asked: set[tuple[str, str]] = set()  # verb and resource of each request, in RBAC's terms
        self.writes: list[Write] = []  # requests that change something, in order, also those with a fault
        self.write_faults: deque[WriteFault] = deque()  # for the next ones that match
        self.on_write: Callable[[Write], object] = lambda _: None  # called before a write is forwarded
        self.on_written: Callable[[Write], object] = lambda _: None  # called before its answer is forwarded
        self._open: set[socket.socket] = set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(plane.certificate, plane.certificate.removesuffix("crt") + "key")
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def cut(self) -> None:
        """Break every connection."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cut()


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection of the agent."""

    proxy: HttpProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.proxy._open.add(self.connection)

    def finish(self) -> None:
        self.proxy._open.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        proxy, parts = self.proxy, urlsplit(self.path)
        query, name = parse_qs(parts.query), parts.path.rsplit("/", 1)[1]
        proxy.requests[name] += 1
        is_list = "sendInitialEvents" in query
        about, one = resource_of(parts.path)
        proxy.asked.add(("get" if one else "watch" if "watch" in query else "list", about))
        if proxy.answers:
            status, headers = proxy.answers.popleft()
            self._answer(status, headers, [json.dumps(_status(status)).encode()])
        elif "watch" in query and not is_list and name in proxy.expired:
            proxy.expired.discard(name)
            self._answer(200, {}, [json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n"])
        elif is_list and name in proxy.stale:
            self._answer(200, {}, proxy.stale.pop(name))
        else:
            self._pass_on(name, is_list=is_list, is_watch="watch" in query)

    def do_POST(self) -> None:
        self._write("POST")

    def do_PUT(self) -> None:
        self._write("PUT")

    def do_PATCH(self) -> None:
        self._write("PATCH")

    def do_DELETE(self) -> None:
        self._write("DELETE")

    def _write(self, method: str) -> None:
        """Record a write, apply a pending fault of its resource, and forward it."""
        proxy, text = self.proxy, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        write = Write(method, urlsplit(self.path).path, json.loads(text or b"{}"))
        proxy.writes.append(write)
        proxy.asked.add((VERBS[method], write.resource))
        proxy.on_write(write)
        fault = next((each for each in proxy.write_faults.copy() if each.resource == write.resource), None)
        if fault is not None:
            proxy.write_faults.remove(fault)
        if fault is None or fault.passed_on:
            server = ServerConnection(proxy.plane)
            try:
                server.request(
                    method, self.path, text, {key: self.headers[key] for key in KEPT_OF_WRITES if key in self.headers}
                )
                answer = server.getresponse()
                data = answer.read()
            finally:
                server.close()
        if fault is None:
            proxy.on_written(write)
            self._answer(answer.status, {}, [data])
        elif fault.silent:
            self.close_connection = True
            self.rfile.read(1)
        elif fault.status:
            self._answer(fault.status, fault.headers, [json.dumps(_status(fault.status)).encode()])
        else:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            self.connection.close()

    def _pass_on(self, name: str, *, is_list: bool, is_watch: bool) -> None:
        server = ServerConnection(self.proxy.plane)
        try:
            server.request("GET", self.path, headers={key: self.headers[key] for key in KEPT if key in self.headers})
            answer = server.getresponse()
            if not is_watch or answer.status != 200:
                retry_after = answer.getheader("Retry-After")
                kept = {"Retry-After": retry_after} if retry_after else {}
                self._answer(answer.status, kept, [answer.read()])
                return
            self._begin(200, {"Transfer-Encoding": "chunked"})
            lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            threading.Thread(target=_read, args=(answer, lines), daemon=True).start()
            if is_list:
                self._pass_list(name, lines)
            self._pass_events(name, lines)
        finally:
            server.close()

    def _pass_list(self, name: str, lines: queue.SimpleQueue[bytes]) -> None:
        found: list[bytes] = []
        while not found or (found[-1] and END.encode() not in found[-1]):
            found.append(lines.get())
            self._chunk(found[-1])
        self.proxy.lists[name] = found

    def _pass_events(self, name: str, lines: queue.SimpleQueue[bytes]) -> None:
        while True:
            together = [lines.get()]
            if self.proxy.disorders:
                with contextlib.suppress(queue.Empty):
                    while together[-1]:
                        together.append(lines.get(timeout=TOGETHER_S))
                together = self._disorder(name, together)
            for line in together:
                self._chunk(line)
                if not line:
                    return

    def _disorder(self, name: str, lines: list[bytes]) -> list[bytes]:
        """Return each event twice, in another order, without bookmarks: these promise that no older event follows."""
        events = [line for line in lines if line and b'"BOOKMARK"' not in line]
        mixed = events * 2
        random.Random(len(events)).shuffle(mixed)
        self.proxy.disordered[name] += sum(one != other for one, other in zip(events, mixed, strict=False))
        return [*mixed, *([b""] if not lines[-1] else [])]

    def _answer(self, status: int, headers: dict[str, str], lines: list[bytes]) -> None:
        body = b"".join(lines)
        self._begin(status, headers | {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        """Send a piece of a body; b"" ends it."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _read(answer: http.client.HTTPResponse, lines: queue.SimpleQueue[bytes]) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
        while line := answer.readline():
            lines.put(line)
    lines.put(b"")


def _status(code: int) -> Obj:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": "a fault of the proxy"}
