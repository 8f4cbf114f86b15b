"""The UDP probe against real sockets."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from lbagent.probes.probe_protocol import Probe, Result
from lbagent.probes.udp_probe import UdpProbe
from tests.probes.plain_servers import LOOPBACKS, PATIENT, QUICK, server_at, unused


def bound(host: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.bind((host, 0))
    return sock


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_a_server_that_answers_is_up(host: str) -> None:
    loop = asyncio.get_running_loop()
    with bound(host) as server:

        async def answer() -> bytes:
            data, peer = await loop.sock_recvfrom(server, 100)
            await loop.sock_sendto(server, b"pong", peer)
            return data

        probe: Probe = UdpProbe(server_at(server, "UDP"), PATIENT, payload=b"ping", needs_answer=True)
        answered = asyncio.create_task(answer())
        outcome = await probe.ask(may_use_idle=True)
        assert (outcome.result, outcome.text) == (Result.OK, "answered")
        assert await answered == b"ping"
        probe.close()


@pytest.mark.parametrize("host", LOOPBACKS)
@pytest.mark.parametrize("needs_answer", [False, True])
async def test_port_unreachable_is_refused_at_once(host: str, needs_answer: bool) -> None:
    began = time.monotonic()
    with unused(socket.SOCK_DGRAM, host) as server:
        outcome = await UdpProbe(server, PATIENT, needs_answer=needs_answer).ask()
    assert (outcome.result, outcome.is_up, outcome.text) == (Result.REFUSED, False, "port unreachable")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("needs_answer", "result", "text"),
    [(False, Result.OK, "not refused within 0.3 s"), (True, Result.TIMEOUT, "no answer within 0.3 s")],
)
async def test_a_silent_server(needs_answer: bool, result: Result, text: str) -> None:
    with bound("127.0.0.1") as server:
        outcome = await UdpProbe(server_at(server, "UDP"), QUICK, needs_answer=needs_answer).ask()
    assert (outcome.result, outcome.text) == (result, text)


async def test_an_empty_answer_is_one() -> None:
    loop = asyncio.get_running_loop()
    with bound("127.0.0.1") as server:
        asking = asyncio.create_task(UdpProbe(server_at(server, "UDP"), PATIENT, needs_answer=True).ask())
        data, peer = await loop.sock_recvfrom(server, 100)
        await loop.sock_sendto(server, b"", peer)
        assert (data, (await asking).text) == (b"", "answered")


async def test_the_answer_of_another_is_none() -> None:
    """The socket is connected: a datagram from elsewhere does not reach it."""
    loop = asyncio.get_running_loop()
    with bound("127.0.0.1") as server, bound("127.0.0.1") as other:
        asking = asyncio.create_task(UdpProbe(server_at(server, "UDP"), QUICK, needs_answer=True).ask())
        _, peer = await loop.sock_recvfrom(server, 100)
        await loop.sock_sendto(other, b"pong", peer)
        assert (await asking).result is Result.TIMEOUT


async def test_a_datagram_that_cannot_be_sent() -> None:
    with bound("127.0.0.1") as server:
        outcome = await UdpProbe(server_at(server, "UDP"), PATIENT, payload=bytes(70_000)).ask()
    assert outcome.result is Result.CONNECTION, outcome.text
