"""The servers of a backend: an HTTP server and a DNS-like UDP responder, both families.

`python -m tests.lab.server NAME --http PORT --dns PORT` prints `ready` when it listens. Paths of the HTTP server: `/` returns
the name of the backend and the client's address, `/slow?chunks=N&ms=M` sends N chunks M milliseconds apart, `/bytes?n=N` sends N
bytes at once. Connections are kept open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import struct
from typing import cast
from urllib.parse import parse_qs, urlsplit

CHUNK = b"x" * 1024


async def respond(name: str, target: str, peer: str, writer: asyncio.StreamWriter) -> None:
    """Answer one request."""
    url = urlsplit(target)
    query = {key: int(values[0]) for key, values in parse_qs(url.query).items()}
    body = f"{name} {peer}\n".encode()
    if url.path == "/bytes":
        body = b"x" * query.get("n", 1)
    if url.path == "/slow":
        chunks = query.get("chunks", 10)
        writer.write(f"HTTP/1.1 200 OK\r\nX-Backend: {name}\r\nContent-Length: {chunks * len(CHUNK)}\r\n\r\n".encode())
        for _ in range(chunks):
            writer.write(CHUNK)
            await writer.drain()
            await asyncio.sleep(query.get("ms", 50) / 1000)
        return
    writer.write(f"HTTP/1.1 200 OK\r\nX-Backend: {name}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def serve(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until the client closes it."""
    peer = writer.get_extra_info("peername")[0]
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await respond(name, head.split(b" ", 2)[1].decode(), peer, writer)
    writer.close()


class Dns(asyncio.DatagramProtocol):
    """Answer any query with one TXT record: the backend's name and the client's address."""

    def __init__(self, name: str) -> None:
        """Set the name of the answers."""
        self.name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer. A datagram too short for a DNS header is echoed, so that any size can be tried."""
        if len(data) < 12:
            self.transport.sendto(data, addr)
            return
        text = f"{self.name} {addr[0]}".encode()
        answer = struct.pack(">HHHIHB", 0xC00C, 16, 1, 0, len(text) + 1, len(text)) + text
        self.transport.sendto(data[:2] + struct.pack(">HHHHH", 0x8180, 1, 1, 0, 0) + data[12:] + answer, addr)


async def main(name: str, http: int, dns: int, addresses: tuple[str, str]) -> None:
    """Listen on both families and never return."""
    loop = asyncio.get_running_loop()
    for family, address in zip((socket.AF_INET, socket.AF_INET6), addresses, strict=True):
        listener = socket.create_server((address, http), family=family, backlog=1024)
        await asyncio.start_server(lambda r, w: serve(name, r, w), sock=listener)
        sock = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, dns))
        await loop.create_datagram_endpoint(lambda: Dns(name), sock=sock)
    print("ready", flush=True)
    await asyncio.Event().wait()


def run() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--http", type=int, default=8080)
    parser.add_argument("--dns", type=int, default=5353)
    parser.add_argument("--ipv4", default="0.0.0.0")
    parser.add_argument("--ipv6", default="::")
    options = parser.parse_args()
    asyncio.run(main(options.name, options.http, options.dns, (options.ipv4, options.ipv6)))


if __name__ == "__main__":
    run()
