"""The HTTP probe against real sockets. What it has in common with the HTTPS probe is in test_https_probe.py, too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest
from msgspec.structs import replace

from lbagent.probes.http_probe import HttpProbe
from lbagent.probes.probe_protocol import Probe, Result
from tests.lab.https_server import full_listener
from tests.probes.plain_servers import PATIENT, QUICK, answering, server_at, unused

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("answer", "result", "text"),
    [
        (OK, Result.OK, "HTTP status 200"),
        (b"HTTP/1.0 399 x\r\nA: b\r\n\r\n", Result.OK, "HTTP status 399"),
        (b"HTTP/1.1 200 OK\r\nno field\r\n\r\n", Result.OK, "HTTP status 200"),
        (b"HTTP/1.1 200 OK\r\nA: b", Result.OK, "HTTP status 200"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", Result.OK, "HTTP status 200"),
        (b"HTTP/1.1 503 x\r\n\r\n", Result.STATUS, "HTTP status 503"),
        (b"\x16\x03\x01\x02", Result.HTTP, "the answer does not begin with a status of HTTP/1.1"),
        (b"HTTP/1.1 20", Result.HTTP, "the answer does not begin with a status of HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 70_000, Result.HTTP, "an answer without an end in its first"),
        (b"", Result.CONNECTION, "the connection ended without an answer"),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else "",
)
async def test_what_is_an_answer(answer: bytes, result: Result, text: str) -> None:
    async with answering(answer) as (server, _):
        outcome = await HttpProbe(server, PATIENT).ask()
    assert outcome.result is result
    assert outcome.text.startswith(text)


async def test_the_request_has_the_path_and_the_host() -> None:
    async with answering(OK) as (server, asked):
        probe: Probe = HttpProbe(server, replace(PATIENT, path="/healthz?x=1", host="web.example"))
        assert (await probe.ask()).is_up
        probe.close()
    assert asked == [b"GET /healthz?x=1 HTTP/1.1\r\nHost: web.example\r\nUser-Agent: lbagent\r\nAccept: */*\r\n\r\n"]


async def test_a_server_that_does_not_answer_in_time() -> None:
    began = time.monotonic()
    async with answering(None) as (server, asked):
        outcome = await HttpProbe(server, QUICK).ask()
        assert len(asked) == 1
    assert (outcome.result, outcome.text) == (Result.TIMEOUT, "no answer within 0.3 s")
    assert time.monotonic() - began < 30


async def test_a_server_that_takes_no_connection_in_time() -> None:
    with contextlib.ExitStack() as closing:
        listener, *_ = [closing.enter_context(sock) for sock in full_listener("127.0.0.1", 0)]
        outcome = await HttpProbe(server_at(listener), QUICK).ask()
    assert outcome.result is Result.TIMEOUT


async def test_a_port_without_a_server_is_refused() -> None:
    with unused(socket.SOCK_STREAM) as server:
        outcome = await HttpProbe(server, PATIENT).ask()
    assert (outcome.result, outcome.text) == (Result.REFUSED, "connection refused")


async def test_a_connection_that_is_reset_half_way() -> None:
    async with answering(b"HTTP/1.1 2", reset=True) as (server, _):
        outcome = await HttpProbe(server, PATIENT).ask()
    assert outcome.result is Result.CONNECTION
    assert outcome.text == "Connection reset by peer"


async def test_a_connection_is_used_again_where_the_server_keeps_it() -> None:
    requests: list[list[bytes]] = []  # by connection

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if not mine:
                    requests.append(mine)
                mine.append(head)
                writer.write(OK)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as listening:
        probe = HttpProbe(server_at(listening.sockets[0]), PATIENT)
        for _ in range(3):
            assert (await probe.ask(may_use_idle=True)).is_up
        assert [len(each) for each in requests] == [3]
        assert (await probe.ask()).is_up
        assert [len(each) for each in requests] == [3, 1]
        probe.close()
