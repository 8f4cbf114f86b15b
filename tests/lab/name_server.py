"""A name server and a caching forwarder (RFC 1035), over UDP and TCP: what kube-dns and a node-local cache are in a cluster.

`python -m tests.lab.name_server serve NAME` answers each query with a TXT record, NAME and the client's address, and sets the bit
AA. `python -m tests.lab.name_server cache --upstream ADDRESS` asks another server once for each question, and answers from its
cache, without that bit, until the record's time is over. Both print `ready` when they listen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

HEADER = struct.Struct(">HHHHHH")
AUTHORITATIVE, RESPONSE, RECURSION = 0x0400, 0x8000, 0x0180
SERVER_FAILURE = 2
TXT, IN = 16, 1
UPSTREAM_S, UPSTREAM_TRIES = 3.0, 3  # for one answer of the upstream server: a busy machine may answer late
Answering = Callable[[bytes, str], Awaitable[bytes]]  # query and client to answer


@dataclass(frozen=True)
class TextAnswer:
    """The answer to a query for a TXT record. `authoritative`: it is not from a cache."""

    server: str
    client: str
    authoritative: bool
    ttl: int


def question_of(message: bytes) -> bytes:
    """Return the question of a message. Raises ValueError."""
    end = HEADER.size
    while end < len(message) and message[end]:
        end += message[end] + 1
    if end + 5 > len(message) or HEADER.unpack_from(message)[2] != 1:
        raise ValueError("no query with one question")
    return message[HEADER.size : end + 5]


def query(name: str) -> bytes:
    """Return a query for the TXT record of a name, with a random number."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    return HEADER.pack(random.randrange(1 << 16), 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", TXT, IN)


def read_answer(asked: bytes, message: bytes) -> TextAnswer:
    """Read the answer to a query. Raises OSError for any other message."""
    ident, flags, _, answers, _, _ = HEADER.unpack_from(message)
    if message[:2] != asked[:2] or question_of(message) != question_of(asked):
        raise OSError(f"the answer {ident} to another query")
    if flags & 0xF or answers != 1:
        raise OSError(f"no answer: code {flags & 0xF}")
    record = HEADER.size + len(question_of(asked))
    (ttl,) = struct.unpack_from(">I", message, record + 6)
    server, client = message[record + 13 :].decode().split()
    return TextAnswer(server, client, bool(flags & AUTHORITATIVE), ttl)


def ask(address: str, name: str, *, port: int = 53, tcp: bool = False, timeout_s: float = 2.0) -> TextAnswer:
    """Send one query from the calling thread's namespace, never repeated, and return its answer. Raises OSError."""
    asked = query(name)
    if tcp:
        with socket.create_connection((address, port), timeout_s) as stream:
            stream.sendall(struct.pack(">H", len(asked)) + asked)
            reader = stream.makefile("rb")
            (length,) = struct.unpack(">H", reader.read(2) or b"\0\0")
            return read_answer(asked, reader.read(length))
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect((address, port))
        sock.send(asked)
        return read_answer(asked, sock.recv(2048))


class Authority:
    """Answers for every name."""

    def __init__(self, name: str, ttl: int) -> None:
        """Set the name in the answers, and for how many seconds a cache may keep them."""
        self._name, self._ttl = name, ttl

    async def answer(self, message: bytes, client: str) -> bytes:
        """Return the answer to a query."""
        question = question_of(message)
        text = f"{self._name} {client}".encode()
        record = struct.pack(">HHHIHB", 0xC00C, TXT, IN, self._ttl, len(text) + 1, len(text)) + text
        flags = RESPONSE | AUTHORITATIVE | RECURSION
        return message[:2] + HEADER.pack(0, flags, 1, 1, 0, 0)[2:] + question + record


class Cache:
    """Answers from its memory, else asks another server, once for all clients with the same question."""

    def __init__(self, upstream: str, port: int) -> None:
        """Set the server to ask."""
        self._upstream, self._port = upstream, port
        self._known: dict[bytes, tuple[float, bytes]] = {}  # by question: until when, and the answer
        self._asked: dict[bytes, asyncio.Task[bytes]] = {}

    async def answer(self, message: bytes, _client: str) -> bytes:
        """Return the answer to a query."""
        question = question_of(message)
        until, kept = self._known.get(question, (0.0, b""))
        if until <= time.monotonic():
            task = self._asked.get(question)
            if task is None:
                task = self._asked[question] = asyncio.create_task(self._fetch(message, question))
                task.add_done_callback(lambda _: self._asked.pop(question, None))
            try:
                kept = await task
            except OSError:
                return message[:2] + HEADER.pack(0, RESPONSE | RECURSION | SERVER_FAILURE, 1, 0, 0, 0)[2:] + question
        return message[:2] + kept[2:]

    async def _ask(self, message: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in self._upstream else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, (self._upstream, self._port))
            await loop.sock_sendall(sock, message)
            return await loop.sock_recv(sock, 2048)

    async def _fetch(self, message: bytes, question: bytes) -> bytes:
        found = b""
        for _ in range(UPSTREAM_TRIES):  # as any cache does, each time from another port
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(self._ask(message), UPSTREAM_S)
                break
        if not found:
            raise OSError("the upstream server does not answer")
        read = read_answer(message, found)
        flags = HEADER.unpack_from(found)[1] & ~AUTHORITATIVE
        kept = found[:2] + struct.pack(">H", flags) + found[4:]
        self._known[question] = time.monotonic() + read.ttl, kept
        return kept


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        task = asyncio.create_task(self._respond(data, addr))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, data: bytes, addr: tuple[str, int]) -> None:
        with contextlib.suppress(ValueError):
            self._transport.sendto(await self._answering(data, addr[0]), addr)


async def _stream(answering: Answering, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    client = writer.get_extra_info("peername")[0]
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
        while True:
            (length,) = struct.unpack(">H", await reader.readexactly(2))
            found = await answering(await reader.readexactly(length), client)
            writer.write(struct.pack(">H", len(found)) + found)
            await writer.drain()
    writer.close()


async def main(answering: Answering, addresses: tuple[str, str], port: int) -> None:
    """Listen on both families until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    for family, address in zip((socket.AF_INET, socket.AF_INET6), addresses, strict=True):
        listener = socket.create_server((address, port), family=family, backlog=1024)
        await asyncio.start_server(lambda r, w: _stream(answering, r, w), sock=listener)
        sock = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        await loop.create_datagram_endpoint(lambda: _Datagrams(answering), sock=sock)
    print("ready", flush=True)
    await ended.wait()


def run() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("serve", "cache"))
    parser.add_argument("--name", default="")
    parser.add_argument("--ttl", type=int, default=1)
    parser.add_argument("--upstream", default="")
    parser.add_argument("--port", type=int, default=53)
    parser.add_argument("--ipv4", default="0.0.0.0")
    parser.add_argument("--ipv6", default="::")
    options = parser.parse_args()
    answering = (
        Authority(options.name, options.ttl).answer if options.kind == "serve" else Cache(options.upstream, 53).answer
    )
    asyncio.run(main(answering, (options.ipv4, options.ipv6), options.port))


if __name__ == "__main__":
    run()
