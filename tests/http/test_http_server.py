"""Connections that bring no request, or take no answer: they keep no other client out for long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lbagent.api import client as api_client
from lbagent.api.client import AgentClient
from lbagent.errors import AgentUnreachable
from lbagent.http import http_server as http
from lbagent.http.http_server import HttpServer, Limits, Request, Response
from tests.api.serving import Agent, served

HALF = b"GET /metrics HTTP/1.1\r\nX: "


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The metrics port of a served agent."""
    with served(Agent(), tmp_path / "agent.sock", "127.0.0.1:0") as server:
        yield server.metrics_port


@contextlib.contextmanager
def half_open(port: int, sources: list[str]) -> Iterator[list[socket.socket]]:
    """Connections, one from each source address, that have sent half of a request."""
    with contextlib.ExitStack() as closing:
        held = []
        for source in sources:
            sock = closing.enter_context(socket.create_connection(("127.0.0.1", port), 10, (source, 0)))
            sock.sendall(HALF)
            held.append(sock)
        yield held


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        return bytes(response.read())


@pytest.mark.parametrize(
    "sources", [["127.0.0.1"] * 64, [f"127.0.7.{n}" for n in range(1, 65)]], ids=["one client", "64 clients"]
)
def test_half_open_requests_keep_no_scraper_out(port: int, sources: list[str]) -> None:
    """64 of them kept Prometheus out for a minute."""
    with half_open(port, sources):
        for _ in range(3):
            assert scrape(port).startswith(b"lbagent_ready 1")


def test_one_client_has_few_connections(port: int) -> None:
    """What it opens beyond eight takes the place of its own oldest one, and of no other client's."""
    with half_open(port, ["127.0.7.1"] * 2) as other, half_open(port, ["127.0.7.2"] * 20) as held:
        ended = []
        for sock in held[:12]:
            sock.settimeout(5)
            ended.append(sock.recv(1))
        assert ended == [b""] * 12
        for sock in (*other, *held[12:]):
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)


@pytest.mark.parametrize("drip", [b"", b"x"], ids=["silent", "a byte now and then"])
def test_half_a_request_ends_in_time(port: int, monkeypatch: pytest.MonkeyPatch, drip: bytes) -> None:
    """However slowly its bytes come."""
    monkeypatch.setattr(http, "HEAD_S", 0.3)
    began = time.monotonic()
    with half_open(port, ["127.0.0.1"]) as (sock,):
        sock.settimeout(0.05)
        while time.monotonic() - began < 10:
            try:
                sock.sendall(drip)
                if sock.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert time.monotonic() - began < 5


def test_a_connection_without_a_byte_ends_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        assert sock.recv(1) == b""


class Slow:
    """A handler that answers after an event."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.body = b"done"
        self.begun = 0
        self.two_begun = asyncio.Event()

    async def __call__(self, _: Request) -> Response:
        self.begun += 1
        if self.begun == 2:
            self.two_begun.set()
        await self.go.wait()
        return Response(200, self.body)


@contextlib.asynccontextmanager
async def serving(handler: Slow, limits: Limits) -> AsyncIterator[int]:
    server = HttpServer(handler, limits)
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await server.close()


async def test_a_request_under_way_gives_up_no_place() -> None:
    """Where every connection has one, the next is turned away."""
    handler = Slow()
    async with serving(handler, Limits(connections=2, makes_room=True)) as port:
        busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in busy:
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await handler.two_begun.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        handler.go.set()
        for reader, writer in busy:
            assert (await reader.read()).endswith(b"done")
            writer.close()


async def test_an_answer_that_is_taken_too_slowly_ends() -> None:
    """And what was not taken is not kept for the client."""
    handler = Slow()
    handler.go.set()
    handler.body = b"x" * (64 << 20)
    async with serving(handler, Limits(answer_s=0.5)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(1.5)
        taken = 0
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(reader.read(1 << 20), 10):
                taken += len(piece)
        assert taken < len(handler.body)


def test_an_agent_that_is_full_before_it_has_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has answered and closed by the time the request is sent: the answer counts, not the broken pipe."""
    path, closed = tmp_path / "full.sock", threading.Event()
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(path))
        full.listen()

        def turn_away() -> None:
            peer, _ = full.accept()
            peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull")
            peer.close()
            closed.set()

        thread = threading.Thread(target=turn_away)
        thread.start()
        connect = api_client._Connection.connect

        def connect_and_wait(connection: api_client._Connection) -> None:
            connect(connection)
            assert closed.wait(10)

        monkeypatch.setattr(api_client._Connection, "connect", connect_and_wait)
        with pytest.raises(AgentUnreachable, match="too many connections"):
            AgentClient(str(path)).status()
        thread.join()
