"""Clients: single requests, many requests at a time, a long download, open connections. All of it real sockets.

A lost SYN is repeated a second later and the request still succeeds; the client's kernel counts these (`syns_again`), and its count
does not depend on the load of this machine.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.lab.netns import Namespace

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Answer:
    """The answering backend, and the client's address at it."""

    backend: str
    client: str


def _answer(body: bytes) -> Answer:
    backend, client = body.decode().split()
    return Answer(backend, client)


def connect(address: str, port: int, *, source_port: int = 0, timeout_s: float = TIMEOUT_S) -> socket.socket:
    """Open a TCP connection from the calling thread's namespace."""
    source = ("::" if ":" in address else "0.0.0.0", source_port) if source_port else None
    return socket.create_connection((address, port), timeout_s, source)


def http_get(address: str, port: int, path: str = "/", timeout_s: float = TIMEOUT_S, *, source_port: int = 0) -> Answer:
    """Make one HTTP request on a new connection and close it."""
    with connect(address, port, source_port=source_port, timeout_s=timeout_s) as sock:
        return _answer(request(sock, path))


def request(sock: socket.socket, path: str = "/") -> bytes:
    """Make one HTTP request on an open connection and return the body; OSError if it breaks or ends early."""
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n".encode())
    response = http.client.HTTPResponse(sock)
    try:
        response.begin()
        body = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"broken answer: {error!r}") from error
    finally:
        response.close()
    return body


def dns_ask(
    address: str, port: int, name: str = "who.lab", *, source_port: int = 0, timeout_s: float = TIMEOUT_S
) -> Answer:
    """Send the DNS-like server one query and return its TXT answer."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout_s)
        if source_port:
            sock.bind(("::" if ":" in address else "0.0.0.0", source_port))
        sock.connect((address, port))
        question = dns_question(name)
        sock.send(question)
        data = sock.recv(2048)
    return dns_answer(question, data)


def dns_question(name: str = "who.lab") -> bytes:
    """Return a query for the DNS-like server, with a unique number."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    return struct.pack(">HHHHHH", random.randrange(1 << 16), 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", 16, 1)


def dns_answer(question: bytes, data: bytes) -> Answer:
    """Read the answer to a query; OSError for the answer to another query."""
    if data[:2] != question[:2]:
        raise OSError("answer to another question")
    text_at = len(question) + 12
    return _answer(data[text_at + 1 : text_at + 1 + data[text_at]])


def spread(client: Namespace, count: int, ask: Callable[[], Answer]) -> Counter[str]:
    """Make requests in sequence and count the answering backends."""
    with client.entered():
        return Counter(ask().backend for _ in range(count))


@dataclass
class Tally:
    """The results of a load."""

    answered: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    syns_again: int = 0  # SYNs that the client's kernel repeated: a packet was lost

    @property
    def total(self) -> int:
        """Requests that were answered."""
        return sum(self.answered.values())


class Load:
    """Requests from several threads in the client's namespace until the end of the block; a context manager."""

    def __init__(
        self, client: Namespace, asks: Sequence[Callable[[], Answer]], workers: int = 4, pause_s: float = 0.0
    ) -> None:
        """`targets` get requests in turns; `pause_s` is between two requests of one worker."""
        self.client, self.asks, self.pause_s = client, asks, pause_s
        self.tally = Tally()
        self._lock = threading.Lock()
        self._end, self._open = threading.Event(), threading.Event()
        self._open.set()
        self._under_way = [threading.Lock() for _ in range(workers)]
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(workers)]

    def __enter__(self) -> Self:
        """Start."""
        self._syns_before = syns_again(self.client)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stop and wait for pending requests."""
        self._end.set()
        for thread in self._threads:
            thread.join()
        self.tally.syns_again = syns_again(self.client) - self._syns_before

    def _work(self, number: int) -> None:
        under_way = self._under_way[number]
        with self.client.entered():
            while not self._end.is_set():
                self._open.wait()
                with under_way:
                    self._one(self.asks[number % len(self.asks)])
                number += 1
                if self.pause_s:
                    time.sleep(self.pause_s)

    def _one(self, ask: Callable[[], Answer]) -> None:
        start = time.monotonic()
        try:
            backend, failure = ask().backend, ""
        except (OSError, ValueError) as error:
            backend, failure = "", f"{type(error).__name__}: {error} [{getattr(ask, 'args', '')}]"
        took = time.monotonic() - start
        with self._lock:
            self.tally.slowest_s = max(self.tally.slowest_s, took)
            if failure:
                self.tally.failures.append(failure)
            else:
                self.tally.answered[backend] += 1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Pause all requests during the block."""
        self._open.clear()
        try:
            with contextlib.ExitStack() as stack:
                for each in self._under_way:
                    stack.enter_context(each)
                yield
        finally:
            self._open.set()

    def wait_more(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait until that many more requests have been answered."""
        goal, deadline = self.tally.total + count, time.monotonic() + timeout_s
        while self.tally.total < goal and time.monotonic() < deadline:
            time.sleep(0.01)


def syns_again(client: Namespace) -> int:
    """Return how many SYNs the namespace's kernel has sent more than once: TCPSynRetrans."""
    with client.entered():
        lines = Path("/proc/thread-self/net/netstat").read_text().splitlines()
    names, values = (line.split() for line in lines if line.startswith("TcpExt:"))
    return int(dict(zip(names, values, strict=True))["TCPSynRetrans"])


class Download:
    """A slow download on one connection, in a thread; `result()` returns whether every byte arrived."""

    def __init__(self, client: Namespace, address: str, port: int, chunks: int, pause_ms: int) -> None:
        """Start it: chunks of 1 KiB, a pause between them."""
        self.expected = chunks * 1024
        self.received, self.error, self.backend = 0, "", ""
        self._path = f"/slow?chunks={chunks}&ms={pause_ms}"
        with client.entered():
            self._sock = connect(address, port)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._sock.sendall(f"GET {self._path} HTTP/1.1\r\nHost: lab\r\n\r\n".encode())
            response = http.client.HTTPResponse(self._sock)
            response.begin()
            self.backend = response.headers["X-Backend"]
            while chunk := response.read(1024):
                self.received += len(chunk)
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self._sock.close()

    @property
    def running(self) -> bool:
        """Whether bytes are still to come."""
        return self._thread.is_alive()

    def result(self, timeout_s: float = 30.0) -> str:
        """Wait for the end; return '' if everything arrived, else the failure."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return f"still {self.expected - self.received} bytes to come after {timeout_s:g} s"
        if not self.error and self.received != self.expected:
            return f"{self.received} of {self.expected} bytes"
        return self.error


class Talkers:
    """Connections that stay open and make a request on demand: established flows to watch."""

    def __init__(
        self, client: Namespace, address: str, port: int, count: int, source_ports: Iterator[int] | None = None
    ) -> None:
        """Open them, from these ports if they are given, and make the first request on each."""
        ports = source_ports or itertools.repeat(0)
        with client.entered():
            self.sockets = [connect(address, port, source_port=next(ports)) for _ in range(count)]
        self.first = [_answer(request(sock)).backend for sock in self.sockets]

    def ask(self) -> list[str]:
        """Make one request on each; return the backends, or the error in place of a name."""
        return [self._ask(sock) for sock in self.sockets]

    @staticmethod
    def _ask(sock: socket.socket) -> str:
        try:
            return _answer(request(sock)).backend
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Close all."""
        for sock in self.sockets:
            sock.close()


class Datagrams:
    """Conversations over UDP with the DNS-like server, each by one connected socket."""

    def __init__(self, client: Namespace, addresses: Iterable[str], port: int, count: int) -> None:
        """Begin `count` with each address: one query on each."""
        self._sockets = []
        with client.entered():
            for address in itertools.chain.from_iterable(itertools.repeat(each, count) for each in addresses):
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                self._sockets.append(sock := socket.socket(family, socket.SOCK_DGRAM))
                sock.settimeout(TIMEOUT_S)
                sock.connect((address, port))
        self.first = self.ask()

    def ask(self) -> list[str]:
        """Send a query on each; return the backends that answer. Raises OSError."""
        found = []
        for sock in self._sockets:
            question = dns_question()
            sock.send(question)
            found.append(dns_answer(question, sock.recv(2048)).backend)
        return found

    def close(self) -> None:
        """Close all."""
        for sock in self._sockets:
            sock.close()


def alive(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
