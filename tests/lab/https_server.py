"""An HTTPS server with a behaviour from a file: API servers of the tests of apilb, in both of its modes.

`python -m tests.lab.https_server NAME --folder FOLDER --listen ADDRESS:PORT` makes a certificate in FOLDER unless one is there,
prints `ready`, and polls FOLDER/NAME.behave: a status (`200`), or one of

- `refused`: no socket listens; existing connections stay
- `hole`: no answer, not even from the kernel
- `silent`: connections are accepted, and never answered
- `plain`: HTTP without TLS
- `broken`: the handshake gets an invalid answer
- `slow`: 200, after three seconds

Every path returns the name and the client's port, except `/watch`: a line every 50 ms until the connection ends. FOLDER/NAME.asked
gets a line for each request: method, path, the Host header.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import ssl
import subprocess
from pathlib import Path

LOOK_S = 0.01
SLOW_S = 3.0


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate and its key, as PEM files in the folder."""
    certificate, key = folder / "server.crt", folder / "server.key"
    if not certificate.exists():
        words = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3650",
            "-subj",
            "/CN=kube-apiserver",
        ]
        draft = folder / "server.crt.new"
        argv = [
            "openssl",
            *words,
            "-addext",
            "subjectAltName=DNS:kube-apiserver",
            "-keyout",
            str(key),
            "-out",
            str(draft),
        ]
        subprocess.run(argv, check=True, capture_output=True)
        draft.rename(certificate)
    return certificate, key


def full_listener(address: str, port: int) -> list[socket.socket]:
    """Return a listener whose queue is full, and the sockets that fill it: the kernel drops each further SYN."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=0)
    fillers = []
    for _ in range(2):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(listener.getsockname())
        fillers.append(sock)
    return [listener, *fillers]


class Server:
    """One server. `behaviour` may be changed at any time."""

    def __init__(self, name: str, folder: Path, address: str, port: int) -> None:
        self.name, self.behaviour, self.port = name, "200", port
        self.asked: list[str] = []
        self.connections = self.handshakes = 0
        self._address, self._listener = address, None
        self._hole: list[socket.socket] = []
        self._serving: set[object] = set()  # tasks of connections: asyncio holds only weak references
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*make_certificate(folder))

    async def follow(self) -> None:
        """Listen, or not, by the behaviour, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Start or stop to listen."""
        listens = self.behaviour not in ("refused", "hole")
        if self._listener is not None and not listens:
            self._listener.close()
            self._listener = None
        if self._hole and self.behaviour != "hole":
            for sock in self._hole:
                sock.close()
            self._hole = []
        if listens and self._listener is None:
            self._listener = await asyncio.start_server(
                self._connected, self._address, self.port, backlog=1024, reuse_address=True
            )
            self.port = self._listener.sockets[0].getsockname()[1]
        if self.behaviour == "hole" and not self._hole:
            self._hole = full_listener(self._address, self.port)

    def end_connections(self) -> None:
        """Close the open connections."""
        for task in self._serving:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        self._serving.add(task)
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)
        with contextlib.suppress(OSError, ssl.SSLError):
            writer.close()
            await writer.wait_closed()
        self._serving.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.behaviour == "silent":
            await asyncio.sleep(3600)
        if self.behaviour == "broken":
            await reader.read(1)
            writer.write(b"\x16\x03\x03\x00\x05rubbish, and more of it\r\n")
            return
        if self.behaviour == "plain":
            await reader.read(4096)
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            return
        await writer.start_tls(self._context)
        self.handshakes += 1
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await self._answer(head, writer)

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        lines = head.split("\r\n")
        method, path = lines[0].split(" ")[:2]
        host = next((line[6:] for line in lines if line.lower().startswith("host: ")), "")
        self.asked.append(f"{method} {path} {host}")
        behaviour = self.behaviour
        if path == "/watch":
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            while True:
                writer.write(f"{self.name}\n".encode())
                await writer.drain()
                await asyncio.sleep(0.05)
        if behaviour == "slow":
            await asyncio.sleep(SLOW_S)
        status = int(behaviour) if behaviour.isdigit() and path.startswith(("/healthz", "/readyz")) else 200
        body = b"" if status == 204 else f"{self.name} {(writer.get_extra_info('peername') or (0, 0))[1]}\n".encode()
        length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
        writer.write(b"HTTP/1.1 %d Word\r\nX-Backend: %s\r\n%s\r\n" % (status, self.name.encode(), length) + body)
        await writer.drain()


async def main(name: str, folder: Path, listen: str) -> None:
    """Serve by FOLDER/NAME.behave, and never return."""
    address, _, port = listen.rpartition(":")
    server = Server(name, folder, address.strip("[]"), int(port))
    asked, behave = folder / f"{name}.asked", folder / f"{name}.behave"
    await server.look()
    print("ready", flush=True)
    following = asyncio.create_task(server.follow())
    while not following.done():
        with contextlib.suppress(FileNotFoundError):
            server.behaviour = behave.read_text().strip() or server.behaviour
        if server.asked:
            with asked.open("a") as file:
                file.writelines(f"{line}\n" for line in server.asked)
            server.asked.clear()
        await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--listen", required=True)
    options = parser.parse_args()
    asyncio.run(main(options.name, options.folder, options.listen))
