"""Servers on the loopback that answer as a test sets them up, without TLS and without root."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator

from lbagent.model.address import L3n4Addr
from lbagent.probes.probe_spec import ProbeSpec
from tests.lab.ports import free_port

QUICK = ProbeSpec(interval=0.3, timeout=0.3)
PATIENT = ProbeSpec(interval=30, timeout=30)
LOOPBACKS = ("127.0.0.1", "::1")


def server_at(sock: socket.socket, protocol: str = "TCP") -> L3n4Addr:
    """Return where a socket is bound."""
    host, port = sock.getsockname()[:2]
    return L3n4Addr.parse(f"[{host}]:{port}/{protocol}" if ":" in host else f"{host}:{port}/{protocol}")


@contextlib.asynccontextmanager
async def answering(answer: bytes | None, *, reset: bool = False) -> AsyncIterator[tuple[L3n4Addr, list[bytes]]]:
    """A TCP server that reads a head, answers and ends the connection; None: it is silent. It gives what it was sent, too."""
    asked: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await asyncio.Event().wait()
        writer.write(answer or b"")
        if reset:
            await writer.drain()
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield server_at(server.sockets[0]), asked


@contextlib.contextmanager
def unused(kind: int, host: str = "127.0.0.1") -> Iterator[L3n4Addr]:
    """A port that nothing is bound to."""
    protocol = "UDP" if kind == socket.SOCK_DGRAM else "TCP"
    shown = f"[{host}]" if ":" in host else host
    with free_port() as port:
        yield L3n4Addr.parse(f"{shown}:{port}/{protocol}")
