"""Real sockets in a laboratory: servers on every backend, clients anywhere, and what became of each request.

One thread has all sockets, and makes many requests at a time: those without an answer share one wait. A packet passes virtual
devices while the sender's system call runs, so most answers are there at once.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tests.lab.netns import Namespace
from tests.oracle.folders import BACKENDS, PORTS, Frontend

SILENT_S = 0.08  # without any answer to any request: what is not there by then is silent
LOST_S = 0.6  # for an open connection: a segment is repeated after 0.2 s
IP_RECVERR, IPV6_RECVERR = 11, 25
ORIGINS = {1: "local", 2: "icmp", 3: "icmp6"}
TOKEN = struct.Struct("!Q")
SOURCE_PORTS = range(33000, 61000)  # no NodePort is among them


@dataclass(frozen=True, order=True)
class Outcome:
    """What became of a request: `kind` is answered, refused or silent."""

    kind: str
    backend: str = ""  # NAME:PORT of the server
    source: str = ""  # the client's address as the server sees it
    how: str = ""  # of refused: rst, or the ICMP message

    def __str__(self) -> str:
        """Return it in a line."""
        return " ".join(
            word for word in (self.kind, self.backend, self.source and f"from {self.source}", self.how) if word
        )


SILENT = Outcome("silent")


class Request(NamedTuple):
    """A frontend to ask, from which namespace, and with which source address (empty: the kernel's choice)."""

    frontend: Frontend
    place: Namespace
    source: str = ""


class Conversation:
    """An open connection (TCP), or a socket and the flow that it made (UDP)."""

    def __init__(self, sock: socket.socket, backend: str, server: socket.socket | None) -> None:
        self.sock, self.backend, self.server = sock, backend, server
        self.now = backend  # who had the last datagram

    def close(self) -> None:
        """End it by RST: no state of it stays."""
        for sock in (self.sock, self.server):
            if sock is not None:
                _abort(sock)


def _abort(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        if sock.type == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class _Pending:
    """A request that has no outcome yet. `ports`: source ports to try."""

    def __init__(self, request: Request, token: bytes, ports: Iterator[int]) -> None:
        self.token, self.outcome = token, SILENT
        self.server: socket.socket | None = None
        self.is_open = self.is_done = False
        frontend = request.frontend
        self.is_tcp = frontend.protocol == "TCP"
        family = socket.AF_INET6 if frontend.version == 6 else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM if self.is_tcp else socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        level, option = (
            (socket.IPPROTO_IPV6, IPV6_RECVERR) if frontend.version == 6 else (socket.IPPROTO_IP, IP_RECVERR)
        )
        self.sock.setsockopt(level, option, 1)
        _bind(self.sock, request.source, ports)
        self.begin((frontend.address, frontend.port))

    def begin(self, address: tuple[str, int]) -> None:
        error = self.sock.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            self.refuse(error)
        elif not self.is_tcp:
            self.send()

    def send(self) -> None:
        try:
            self.sock.send(self.token)
        except OSError as fault:
            self.refuse(fault.errno or 0)

    def refuse(self, error: int) -> None:
        how = "after the handshake" if self.is_open and self.is_tcp else _how(self.sock, error)
        self.finish(Outcome("refused", how=how))

    def finish(self, outcome: Outcome) -> None:
        self.outcome, self.is_done = outcome, True

    def look(self, events: int) -> None:
        """Take what the client's socket has: the end of the handshake, an error, the answer."""
        if error := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.refuse(error)
            return
        if self.is_tcp and not self.is_open and events & select.EPOLLOUT:
            self.is_open = True
            self.send()
        if events & select.EPOLLIN:
            try:
                answered = self.sock.recv(64) == self.token
            except OSError as fault:
                self.refuse(fault.errno or 0)
                return
            self.is_done = self.is_done or answered

    def result(self) -> tuple[Outcome, Conversation | None]:
        """Return its outcome, and the connection if it is open; all else is closed."""
        if self.is_done and self.outcome.kind == "answered":
            return self.outcome, Conversation(self.sock, self.outcome.backend, self.server)
        for sock in (self.sock, self.server):
            if sock is not None:
                _abort(sock)
        if not self.is_done and self.outcome.kind == "answered":
            return replace(self.outcome, how="without the answer"), None
        return self.outcome, None


def _bind(sock: socket.socket, source: str, ports: Iterator[int]) -> None:
    for port in ports:
        try:
            sock.bind((source, port))
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE:
                raise
        else:
            return


class Asker:
    """The servers of one laboratory, and requests to them."""

    def __init__(self, spaces: dict[str, Namespace]) -> None:
        """Listen on all backends: TCP and UDP, both families."""
        self._poll = select.epoll()
        self._servers: dict[int, tuple[str, socket.socket]] = {}
        self._accepted: dict[int, tuple[str, str, socket.socket]] = {}
        self._tokens = itertools.count(1)
        # Each client has each port once in a while: two flows of one client port may need another source (docs/renderers.md).
        self._ports: defaultdict[tuple[Namespace, str], Iterator[int]] = defaultdict(
            lambda: itertools.cycle(SOURCE_PORTS)
        )
        for name, addresses in BACKENDS.items():
            with spaces[name].entered():
                for address, port in itertools.product(addresses, PORTS):
                    self._listen(name, address, port)

    def _listen(self, name: str, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        tcp = socket.create_server((address, port), family=family, backlog=4096)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        udp.bind((address, port))
        for sock in (tcp, udp):
            sock.setblocking(False)
            self._poll.register(sock, select.EPOLLIN)
            self._servers[sock.fileno()] = (f"{name}:{port}", sock)

    def close(self) -> None:
        """Close the servers."""
        for _, sock in self._servers.values():
            sock.close()
        self._poll.close()

    # --- requests ---

    def ask(self, requests: Sequence[Request], wait_s: float = SILENT_S) -> list[tuple[Outcome, Conversation | None]]:
        """Make requests, all at a time, each on a new socket; those that were answered stay open. The order is that of `requests`."""
        made: list[_Pending] = []
        for place, group in itertools.groupby(requests, lambda request: request.place):
            with place.entered():
                made += [
                    _Pending(request, TOKEN.pack(next(self._tokens)), self._ports[place, request.source])
                    for request in group
                ]
        self._run(made, wait_s)
        return [each.result() for each in made]

    def _run(self, made: Sequence[_Pending], wait_s: float) -> None:
        clients = {each.sock.fileno(): each for each in made if not each.is_done}
        by_token = {each.token: each for each in clients.values()}
        for descriptor in clients:
            self._poll.register(descriptor, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        try:
            while any(not each.is_done for each in clients.values()):
                ready = self._poll.poll(wait_s)
                if not ready:
                    return
                for descriptor, events in ready:
                    if descriptor in clients:
                        clients[descriptor].look(events)
                    else:
                        self._serve(descriptor, by_token)
        finally:
            for descriptor in clients:
                self._poll.unregister(descriptor)
            for descriptor, (_, _, sock) in list(self._accepted.items()):
                self._poll.unregister(descriptor)
                _abort(sock)  # of a request that was given up
            self._accepted.clear()

    def _serve(self, descriptor: int, by_token: Mapping[bytes, _Pending]) -> None:
        if descriptor in self._accepted:
            name, peer, sock = self._accepted.pop(descriptor)
            self._poll.unregister(descriptor)
            with contextlib.suppress(OSError):
                token = sock.recv(64)
                if pending := by_token.get(token):
                    pending.server, pending.outcome = sock, Outcome("answered", name, peer)
                    sock.send(token)
                    return
            _abort(sock)
            return
        name, server = self._servers[descriptor]
        with contextlib.suppress(BlockingIOError):
            if server.type == socket.SOCK_STREAM:
                sock, peer = server.accept()
                sock.setblocking(False)
                self._accepted[sock.fileno()] = (name, peer[0], sock)
                self._poll.register(sock, select.EPOLLIN)
                return
            token, address = server.recvfrom(64)
            if pending := by_token.get(token):
                pending.outcome = Outcome("answered", name, address[0])
                server.sendto(token, address)

    # --- open connections ---

    def still(self, conversations: Sequence[Conversation], wait_s: float = LOST_S) -> list[str]:
        """Return what open connections feel: kept, reset, moved, refused or silent. UDP by a datagram, TCP by a segment each way."""
        sent = {TOKEN.pack(next(self._tokens)): each for each in conversations}
        out: dict[Conversation, str] = {}
        for token, each in sent.items():
            try:
                each.sock.send(token)
            except OSError as fault:
                out[each] = _broken(fault)
        deadline = time.monotonic() + wait_s
        while len(out) < len(sent) and time.monotonic() < deadline:
            for token, each in sent.items():
                if each not in out and (felt := self._felt(each, token)):
                    out[each] = felt
            self._datagrams(sent)
            time.sleep(0.001)
        return [out.get(each, "silent") for each in conversations]

    def _felt(self, conversation: Conversation, token: bytes) -> str:
        """Return what a connection feels by now; nothing: it has no answer yet."""
        try:
            if conversation.server is not None:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    if conversation.server.recv(64).endswith(token):
                        conversation.server.send(token)
            if conversation.sock.recv(64) == token:
                return (
                    "kept" if conversation.server is not None or conversation.now == conversation.backend else "moved"
                )
            return "ended"
        except BlockingIOError:
            return ""
        except OSError as fault:
            return _broken(fault)

    def _datagrams(self, sent: Mapping[bytes, Conversation]) -> None:
        for name, server in self._servers.values():
            if server.type == socket.SOCK_DGRAM:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        token, address = server.recvfrom(64)
                        if token in sent:
                            sent[token].now = name
                            server.sendto(token, address)


def _broken(fault: OSError) -> str:
    if fault.errno in (errno.ECONNRESET, errno.EPIPE):
        return "reset"
    return "refused" if fault.errno == errno.ECONNREFUSED else errno.errorcode[fault.errno or 0]


def _how(sock: socket.socket, error: int) -> str:
    """Return what refused a request: the error queue of the socket has ICMP messages, and none for RST."""
    name = errno.errorcode.get(error, str(error))
    try:
        _, rows, _, _ = sock.recvmsg(512, 512, socket.MSG_ERRQUEUE)
    except OSError:
        return "rst" if error == errno.ECONNREFUSED and sock.type == socket.SOCK_STREAM else f"local {name}"
    for _, kind, data in rows:
        if kind in (IP_RECVERR, IPV6_RECVERR):
            _, origin, message, code = struct.unpack_from("=IBBB", data)
            return f"{ORIGINS.get(origin, origin)} {message}/{code}"
    return name
