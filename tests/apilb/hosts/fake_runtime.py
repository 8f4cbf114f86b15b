"""Servers at a unix socket: a Docker with fixed answers, or a server that is not a runtime."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

Answers = dict[str, tuple[int, Any]]  # "GET /version": status and JSON; the first that fits the end of the path
VERSION = {"ApiVersion": "1.43", "MinAPIVersion": "1.12"}


@contextlib.contextmanager
def fake_docker(path: Path, answers: Answers, **headers: str) -> Iterator[list[str]]:
    """Answer as Docker, with further headers (Libpod_Api_Version); yield the requests. Other requests get 404."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return ""

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {self.path.partition('?')[0]}"
            asked.append(request)
            fits = (
                answer
                for end, answer in answers.items()
                if request.startswith(end.split()[0]) and request.endswith(end.split()[1])
            )
            status, value = next(fits, (404, {"message": "no such thing"}))
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = _answer

    with ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield asked
        server.shutdown()


@contextlib.contextmanager
def no_runtime(path: Path, said: bytes) -> Iterator[None]:
    """Send these bytes on each connection, and close; b'': accept connections and send nothing."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    held = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                if said:
                    connection.sendall(said)
                    connection.close()

    threading.Thread(target=serve, daemon=True).start()
    yield
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for each in held:
        each.close()
