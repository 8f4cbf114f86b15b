"""The gRPC probe against what grpc-go 1.79 and the C core of gRPC answered to it, and against servers that are none of gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from lbagent.model.address import L3n4Addr
from lbagent.probes.grpc_probe import GrpcProbe
from lbagent.probes.probe_protocol import Result
from lbagent.probes.probe_spec import ProbeKind, ProbeSpec
from tests.probes.plain_servers import PATIENT, QUICK, server_at

SPEC = replace(PATIENT, kind=ProbeKind.GRPC, path="", host="")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# SETTINGS, the acknowledgement of the client's, WINDOW_UPDATE, PING
GO_HEAD = (
    b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00\x00\x00\x00\x04\x01\x00\x00\x00\x00\x00\x00\x04\x08\x00\x00\x00\x00\x00"
    b"\x00\x00\x00\x05\x00\x00\x08\x06\x00\x00\x00\x00\x00\x02\x04\x10\x10\t\x0e\x07\x07"
)
GO_HEADERS = b"\x00\x00\x0e\x01\x04\x00\x00\x00\x01\x88_\x8b\x1du\xd0b\r&=LMed"
GO_TRAILERS = (
    b"\x00\x00\x18\x01\x05\x00\x00\x00\x01@\x88\x9a\xca\xc8\xb2\x124\xda\x8f\x010@\x89\x9a\xca\xc8\xb5%B\x071\x7f\x00"
)
GO_UNIMPLEMENTED = (
    b"\x00\x00B\x01\x05\x00\x00\x00\x01\x88_\x8b\x1du\xd0b\r&=LMed@\x88\x9a\xca\xc8\xb2\x124\xda\x8f\x0212@\x89\x9a\xca\xc8\xb5%B\x071\x7f"
    b"\x9b\xb6\xae\xb5\x1f\xc5J \xb6w1\n\xa4\xd6VE\xe7(\xe8L\xeb\xf7\n\xf8\xca:\x13?"
)
CORE_HEAD = (
    b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00@\x00\x00\x00\x05\x00@\x00\x00\x00\x06\x00\x00@\x00\xfe\x03\x00\x00\x00\x01"
    b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00?\x00\x01"
    b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"
    b"\x00\x00N\x01\x04\x00\x00\x00\x01\x88@\x0ccontent-type\x10application/grpc@\x14grpc-accept-encoding\x17identity, deflate, gzip"
)
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def data(message: bytes, flags: int = 0) -> bytes:
    """Return a DATA frame of stream 1."""
    return len(message).to_bytes(3, "big") + bytes((0, flags, 0, 0, 0, 1)) + message


def status(number: int) -> bytes:
    """Return a HealthCheckResponse as a message of gRPC."""
    return b"\x00\x00\x00\x00\x02\x08" + bytes((number,))


@contextlib.asynccontextmanager
async def answering(*pieces: bytes, ends: bool = False) -> AsyncIterator[tuple[L3n4Addr, list[bytes]]]:
    """A server that answers in pieces once it has a request; it gives what it was sent, too."""
    asked: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(4096))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if ends:
            writer.close()
        else:
            await reader.read()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server_at(server.sockets[0]), asked


async def probed(*pieces: bytes, ends: bool = False, spec: ProbeSpec = SPEC) -> tuple[Result, str]:
    async with answering(*pieces, ends=ends) as (server, _):
        outcome = await GrpcProbe(server, spec).ask()
    return outcome.result, outcome.text


@pytest.mark.parametrize(
    ("pieces", "result", "text"),
    [
        ([GO_HEAD + GO_HEADERS + data(status(1)) + GO_TRAILERS], Result.OK, "SERVING"),
        ([GO_HEAD, GO_HEADERS, data(status(2)), GO_TRAILERS], Result.STATUS, "NOT_SERVING"),
        ([CORE_HEAD, data(status(1))], Result.OK, "SERVING"),
        ([CORE_HEAD, data(b"\x00\x00\x00\x00\x00")], Result.STATUS, "UNKNOWN"),
        ([CORE_HEAD, data(status(3))], Result.STATUS, "SERVICE_UNKNOWN"),
        ([CORE_HEAD, data(status(9))], Result.STATUS, "UNKNOWN"),
        ([CORE_HEAD, data(b"\x02" + status(1) + b"\x00\x00", flags=0x8)], Result.OK, "SERVING"),  # padded
        ([CORE_HEAD, data(status(1)[:3]), data(status(1)[3:])], Result.OK, "SERVING"),
        ([bytes((each,)) for each in SETTINGS + data(status(1))], Result.OK, "SERVING"),
    ],
)
async def test_answers(pieces: Sequence[bytes], result: Result, text: str) -> None:
    assert await probed(*pieces) == (result, text)


async def test_a_server_without_the_health_service() -> None:
    result, text = await probed(GO_HEAD + GO_UNIMPLEMENTED)
    assert result is Result.HTTP
    assert "does not serve grpc.health.v1" in text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the answer is not HTTP/2"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the answer is not HTTP/2"),
        (
            SETTINGS + b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x07",
            "the server ends the request (RST_STREAM)",
        ),
        (SETTINGS + b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8), "the server ends the connection (GOAWAY)"),
        (SETTINGS + data(b"\x01" + status(1)[1:]), "the answer of grpc.health.v1 cannot be read"),
        (SETTINGS + data(b"\x00\x00\x00\x00\x02\x12\x01"), "the answer of grpc.health.v1 cannot be read"),
    ],
)
async def test_servers_of_another_kind(answer: bytes, text: str) -> None:
    assert await probed(answer) == (Result.HTTP, text)


async def test_a_connection_that_ends_too_soon() -> None:
    assert await probed(GO_HEAD, ends=True) == (Result.HTTP, "the connection ended before the answer")
    assert (await probed(ends=True))[0] is Result.CONNECTION


async def test_a_server_that_sends_without_end() -> None:
    many = SETTINGS + (b"\x00\x40\x00\x00\x00\x00\x00\x00\x03" + bytes(1 << 14)) * 4
    result, text = await probed(many)
    assert result is Result.HTTP
    assert "without an end" in text


async def test_a_silent_server() -> None:
    spec = replace(SPEC, interval=QUICK.interval, timeout=QUICK.timeout)
    assert await probed(GO_HEAD, spec=spec) == (Result.TIMEOUT, "no answer within 0.3 s")


async def test_the_request_is_http2_with_the_name_of_the_service() -> None:
    """Read by the frames of RFC 9113: SETTINGS, HEADERS and DATA, which ends the stream."""
    async with answering(GO_HEAD + data(status(1))) as (server, asked):
        spec = replace(SPEC, path="/shop.Cart")
        assert (await GrpcProbe(server, spec).ask()).is_up
    (sent,) = asked
    assert sent.startswith(PREFACE + SETTINGS)
    rest = sent[len(PREFACE + SETTINGS) :]
    length = int.from_bytes(rest[:3], "big")
    assert rest[3:9] == b"\x01\x04\x00\x00\x00\x01"
    fields = rest[9 : 9 + length]
    assert b"\x1c/grpc.health.v1.Health/Check" in fields
    assert str(server).encode() in fields
    assert rest[9 + length :] == data(b"\x00\x00\x00\x00\x0b\x0a\x09shop.Cart", flags=1)


async def test_long_names() -> None:
    name = "x" * 300
    async with answering(GO_HEAD + data(status(1))) as (server, asked):
        await GrpcProbe(server, replace(SPEC, path=f"/{name}", host="y" * 200)).ask()
    assert data(b"\x00" + (303).to_bytes(4, "big") + b"\x0a\xac\x02" + name.encode(), flags=1) in asked[0]
    assert b"\x01\x7f\x49" + b"y" * 200 in asked[0]  # 127 + 73
