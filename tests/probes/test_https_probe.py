"""One check of a server: what counts as up, how failures are told apart, and that none of them takes longer than it may."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

from lbagent.model.address import L3n4Addr
from lbagent.probes.check_time import Deadline
from lbagent.probes.http_probe import request_of
from lbagent.probes.https_probe import Contexts, HttpsProbe
from lbagent.probes.probe_protocol import Result
from lbagent.probes.probe_spec import ProbeSpec
from lbagent.probes.tcp_connection import TcpConnection
from tests.lab.health_cases import HEALTH_CASES, HealthCase
from tests.lab.https_server import Server, make_certificate

pytestmark = [pytest.mark.root]
QUICK = ProbeSpec(interval=0.4, timeout=0.4)
PATIENT = ProbeSpec(interval=30, timeout=30)


def probe(server: Server, check: ProbeSpec = PATIENT) -> HttpsProbe:
    return HttpsProbe(L3n4Addr.parse(f"127.0.0.1:{server.port}"), check, Contexts())


@pytest.fixture
def another(tmp_path: Path) -> Path:
    """Return a folder with another certificate."""
    make_certificate(tmp_path)
    return tmp_path


async def behaves(server: Server, how: str) -> None:
    server.behaviour = how
    await server.look()


@pytest.mark.parametrize("case", HEALTH_CASES, ids=lambda case: case.name)
async def test_what_is_up_and_what_is_not(server: Server, case: HealthCase) -> None:
    await behaves(server, case.behaviour)
    outcome = await probe(server, QUICK if case.behaviour == "hole" else PATIENT).ask()
    assert (outcome.result, outcome.is_up) == (case.result, case.up), outcome.text


async def test_the_request_has_the_path_and_the_host(server: Server) -> None:
    check = ProbeSpec(path="/readyz?verbose", host="api.example", interval=30, timeout=30)
    assert (await probe(server, check).ask()).is_up
    assert server.asked == ["GET /readyz?verbose api.example"]
    other = L3n4Addr.parse("[fd00::7]:8443")
    assert request_of(check, other).startswith(b"GET /readyz?verbose HTTP/1.1\r\nHost: api.example\r\n")
    assert request_of(check, other).endswith(b"\r\n\r\n")
    assert b"\r\nHost: [fd00::7]:8443\r\n" in request_of(ProbeSpec(host=""), other)


@pytest.mark.parametrize("how", ["silent", "slow"])
async def test_a_server_that_does_not_answer_in_time_fails(server: Server, how: str) -> None:
    await behaves(server, how)
    outcome = await probe(server, ProbeSpec(interval=30, timeout=0.3)).ask()
    assert (outcome.result, outcome.text) == (Result.TIMEOUT, "no answer within 0.3 s")


async def test_connecting_takes_one_interval_at_most(server: Server) -> None:
    await behaves(server, "hole")
    began = time.monotonic()
    assert (await probe(server, ProbeSpec(interval=0.3, timeout=60)).ask()).result is Result.TIMEOUT
    assert time.monotonic() - began < 30


async def test_with_a_ca_the_certificate_is_verified(server: Server, certificate: Path, another: Path) -> None:
    assert (await probe(server).ask()).is_up
    for folder, result in ((certificate, Result.OK), (another, Result.TLS)):
        outcome = await probe(server, ProbeSpec(interval=30, timeout=30, ca_file=str(folder / "server.crt"))).ask()
        assert outcome.result is result, outcome.text


async def test_a_ca_that_cannot_be_used_says_nothing_of_the_server(server: Server, tmp_path: Path) -> None:
    ca = tmp_path / "ca.crt"
    asked = probe(server, ProbeSpec(interval=30, timeout=30, ca_file=str(ca)))
    with pytest.raises(FileNotFoundError):
        await asked.ask()
    ca.write_text("no PEM at all")
    with pytest.raises(ValueError, match="holds no certificate in PEM"):
        await asked.ask()
    assert server.connections == 0


async def test_a_ca_that_goes_keeps_what_it_was(
    server: Server, certificate: Path, another: Path, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text((certificate / "server.crt").read_text())
    asked = probe(server, ProbeSpec(interval=30, timeout=30, ca_file=str(ca)))
    assert (await asked.ask()).is_up
    ca.unlink()
    assert (await asked.ask()).is_up
    ca.write_text((another / "server.crt").read_text())
    assert (await asked.ask()).result is Result.TLS


async def test_each_check_is_a_handshake_unless_it_may_use_the_connection_before(server: Server) -> None:
    asked = probe(server)
    for _ in range(3):
        assert (await asked.ask()).is_up
    assert server.handshakes == 3
    for _ in range(3):
        assert (await asked.ask(may_use_idle=True)).is_up
    assert server.handshakes == 3
    asked.close()


@pytest.mark.parametrize(("how", "result"), [("refused", Result.REFUSED), ("hole", Result.TIMEOUT)])
async def test_a_server_that_takes_no_new_connection_is_found_though_it_answers_on_the_one_before(
    server: Server, how: str, result: Result
) -> None:
    asked = probe(server, ProbeSpec(interval=0.4, timeout=60))
    assert (await asked.ask()).is_up
    await behaves(server, how)
    outcome = await asked.ask(may_use_idle=True)
    assert outcome.result is result, outcome.text
    assert server.handshakes == 1
    asked.close()


async def test_the_server_s_process_does_not_see_a_connection_that_is_only_to_show_that_it_is_taken(
    alone: None,
) -> None:
    with socket.create_server(("127.0.0.1", 6443)) as listener, contextlib.closing(Deadline(60)) as deadline:
        listener.setblocking(False)
        for _ in range(50):  # unless the machine is so busy that the delayed ACK is sent
            made = TcpConnection(L3n4Addr.parse("127.0.0.1:6443"), half_open=True)
            await made.established(deadline)
            made.close()
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                break
        else:
            pytest.fail("each connection was seen")


async def test_an_idle_connection_that_ended_is_no_failure(server: Server) -> None:
    asked = probe(server)
    assert (await asked.ask()).is_up
    assert asked._idle is not None
    asked._idle._sock.shutdown(2)
    assert (await asked.ask(may_use_idle=True)).is_up
    assert server.handshakes == 2


async def test_an_idle_connection_that_the_server_ends_is_noticed(server: Server) -> None:
    asked = probe(server)
    assert (await asked.ask()).is_up
    server.end_connections()
    async with asyncio.timeout(60):
        while not (asked._idle and asked._idle.has_ended):  # noqa: ASYNC110 it has no event
            await asyncio.sleep(0.01)
    assert (await asked.ask(may_use_idle=True)).is_up
    assert server.handshakes == 2
    asked.close()


ANSWERS = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok": Result.OK,
    b"HTTP/1.1 200\r\n\r\n": Result.OK,
    b"HTTP/1.0 399 x\r\nA: b\r\n\r\n": Result.OK,
    b"HTTP/1.1 199 x\r\n\r\n": Result.STATUS,
    b"HTTP/1.1 101 x\r\n\r\n": Result.STATUS,
    b"HTTP/1.1 400 x\r\n\r\n": Result.STATUS,
    b"HTTP/2 200 OK\r\n\r\n": Result.HTTP,
    b"SSH-2.0-OpenSSH_9.2\r\n": Result.HTTP,
    b"HTTP/1.1 2000 OK\r\n\r\n": Result.HTTP,
    b"HTTP/1.1 20": Result.HTTP,
    b"": Result.CONNECTION,
    b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 70_000: Result.HTTP,
    b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + b"x" * 900_000: Result.OK,
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: repr(answer[:24]))
async def test_what_is_an_answer(alone: None, certificate: Path, answer: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "server.crt", certificate / "server.key")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 6443, ssl=context):
        outcome = await HttpsProbe(L3n4Addr.parse("127.0.0.1:6443"), PATIENT, Contexts()).ask()
    assert outcome.result is ANSWERS[answer], outcome.text
